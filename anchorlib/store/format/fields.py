"""Checks of the type and bounds of each field of a catalogue line.

A line that fits its checksum may still have been made by anyone. So a value of another type or out
of bounds raises ValueError here, before memory is allocated, a file opened or a text shown because
of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["check_depth", "flag", "items", "mapping", "step", "text", "texts", "whole"]

_DEEPEST: Final = 200
"""How deeply JSON in a line may be nested: functions that walk over it recurse for each level."""

_MOST: Final = (1 << 64) - 1
_SHOWN: Final = 60  # characters of a value that an error quotes


def whole(value: Any, least: int = 0, most: int = _MOST) -> int:
    """Return `value` if it is an int from `least` to `most`; otherwise raise ValueError."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{_shown(value)} is no whole number from {least} to {most}")
    return value


def step(value: Any) -> int:
    """Return `value` if it is a step number, a 64-bit signed int; otherwise raise ValueError."""
    return whole(value, -(1 << 63), (1 << 63) - 1)


def text(value: Any) -> str:
    """Return `value` if it is a str that UTF-8 can encode, so without unpaired surrogates.

    Otherwise raise ValueError.
    """
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is no text")
    value.encode()
    return value


def flag(value: Any) -> bool:
    """Return `value` if it is a bool; otherwise raise ValueError."""
    if not isinstance(value, bool):
        raise ValueError(f"{_shown(value)} is neither true nor false")
    return value


def items(value: Any) -> Sequence[Any]:
    """Return `value` if it is a list or a tuple; otherwise raise ValueError.

    Tuples are allowed because entries that have not been through JSON yet hold tuples.
    """
    if not isinstance(value, list | tuple):
        raise ValueError(f"{_shown(value)} is no list")
    return value


def texts(value: Any) -> tuple[str, ...]:
    """Return `value`, a list or tuple of str, as a tuple; raise ValueError for anything else."""
    return tuple(map(text, items(value)))


def mapping(value: Any) -> dict[str, Any]:
    """Return `value` if it is a JSON object (a dict); otherwise raise ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{_shown(value)} is no object")
    return value


def check_depth(value: Any) -> None:
    """Raise ValueError where dicts and lists in `value` are nested more than _DEEPEST deep."""
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
