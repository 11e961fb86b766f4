"""The fields of a catalogue line, each checked for its type and bounds.

A line that fits its checksum may still have been made by anyone. So a value of another type or out
of bounds is a ValueError here, before memory is sized, a file opened or a text shown by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["check_depth", "flag", "items", "mapping", "step", "text", "texts", "whole"]

_DEEPEST: Final = 200
"""How deep a line may be nested: functions that walk over it recurse once or twice a level."""

_MOST: Final = (1 << 64) - 1
_SHOWN: Final = 60  # characters of a value that an error quotes


def whole(value: Any, least: int = 0, most: int = _MOST) -> int:
    """A whole number from `least` to `most`."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{_shown(value)} is no whole number from {least} to {most}")
    return value


def step(value: Any) -> int:
    """The number of a step: 64 bits, and it may be negative."""
    return whole(value, -(1 << 63), (1 << 63) - 1)


def text(value: Any) -> str:
    """Text that UTF-8 can write, which unpaired surrogates are not."""
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is no text")
    value.encode()
    return value


def flag(value: Any) -> bool:
    """A boolean."""
    if not isinstance(value, bool):
        raise ValueError(f"{_shown(value)} is neither true nor false")
    return value


def items(value: Any) -> Sequence[Any]:
    """A list; a tuple is taken too, for entries that were not JSON yet."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{_shown(value)} is no list")
    return value


def texts(value: Any) -> tuple[str, ...]:
    """A list of texts."""
    return tuple(map(text, items(value)))


def mapping(value: Any) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise ValueError(f"{_shown(value)} is no object")
    return value


def check_depth(value: Any) -> None:
    """Raises ValueError for an object that is nested deeper than _DEEPEST."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return
    raise ValueError(f"it is nested more than {_DEEPEST} deep")


def _inside(value: Any) -> list[Any]:
    values = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    )
    return [one for one in values if isinstance(one, dict | list)]


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
