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


def whole(told: Any, least: int = 0, most: int = _MOST) -> int:
    """A whole number from `least` to `most`."""
    if type(told) is not int or not least <= told <= most:
        raise ValueError(f"{_shown(told)} is no whole number from {least} to {most}")
    return told


def step(told: Any) -> int:
    """The number of a step: 64 bits, and it may be negative."""
    return whole(told, -(1 << 63), (1 << 63) - 1)


def text(told: Any) -> str:
    """Text that UTF-8 can write, which unpaired surrogates are not."""
    if not isinstance(told, str):
        raise ValueError(f"{_shown(told)} is no text")
    told.encode()
    return told


def flag(told: Any) -> bool:
    """A boolean."""
    if not isinstance(told, bool):
        raise ValueError(f"{_shown(told)} is neither true nor false")
    return told


def items(told: Any) -> Sequence[Any]:
    """A list; a tuple is taken too, for entries that were not JSON yet."""
    if not isinstance(told, list | tuple):
        raise ValueError(f"{_shown(told)} is no list")
    return told


def texts(told: Any) -> tuple[str, ...]:
    """A list of texts."""
    return tuple(map(text, items(told)))


def mapping(told: Any) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(told, dict):
        raise ValueError(f"{_shown(told)} is no object")
    return told


def check_depth(told: Any) -> None:
    """Raises ValueError for an object that is nested deeper than _DEEPEST."""
    level = [told]
    for _ in range(_DEEPEST):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return
    raise ValueError(f"it is nested more than {_DEEPEST} deep")


def _inside(told: Any) -> list[Any]:
    values = told.values() if isinstance(told, Mapping) else told if isinstance(told, list) else ()
    return [one for one in values if isinstance(one, dict | list)]


def _shown(told: Any) -> str:
    shown = repr(told)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
