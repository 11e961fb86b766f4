"""Modes: which observations of a tensor become records, and how they are folded together.

    mode                       emits
    All                        every observation
    Sum(window=1)              one record a window: the sum, in a wide dtype, with its count
    Final(window=1)            the last observation of each window
    EveryN(n, unit, window)    the n-th, 2n-th, … observation, or all of every n-th step
    Summary                    every observation, its summary row alone

An observation is a tensor as it is seen once, at an anchor or by a hook. The observations of one
tensor, kind ("value", "grad", …) and phase on one rank are a stream, and a mode acts on each stream
separately. Window k is the steps k·w … (k+1)·w − 1, absolute step numbers; the last, unfinished
window is emitted when the session closes.

Modes are frozen values and check nothing themselves: `parse_mode` checks them when a mode is given
to `start`, `watch` or `anchor`. `str(mode)` is the text that `parse_mode` reads back. A fold
applies a mode to a stream (see `anchorlib.folds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from anchorlib.errors import ModeError
from anchorlib.names import quoted

__all__ = [
    "All",
    "EveryN",
    "Final",
    "Mode",
    "ModeSpec",
    "Sum",
    "Summary",
    "Window",
    "parse_mode",
    "parse_modes",
]

Window: TypeAlias = int | Literal["run"]
Unit: TypeAlias = Literal["record", "step"]


@dataclass(frozen=True, slots=True)
class All:
    """The mode that records every observation of a tensor."""

    def __str__(self) -> str:
        return "all"


@dataclass(frozen=True, slots=True)
class Summary:
    """The mode that records only the summary row (digest, extremes, counts) of every observation.

    No values are kept.
    """

    def __str__(self) -> str:
        return "summary"


@dataclass(frozen=True, slots=True)
class Sum:
    """The mode that records, for each window of steps, the sum of the observations in the window.

    window: the length of a window in steps, or "run" for all steps of the run.

    Sums are computed in a wide dtype: half and fp8 in float32, float32 and float64 in float64,
    integers and bool in int64, complex in complex128. `Record.count` says how many observations
    were added.
    """

    window: Window = 1

    def __str__(self) -> str:
        return "sum" if self.window == 1 else f"sum:window={self.window}"


@dataclass(frozen=True, slots=True)
class Final:
    """The mode that records the last observation of each window of steps.

    window: the length of a window in steps, or "run" for all steps of the run.
    """

    window: Window = 1

    def __str__(self) -> str:
        return "final" if self.window == 1 else f"final:window={self.window}"


@dataclass(frozen=True, slots=True)
class EveryN:
    """The mode that records the n-th, 2n-th, … observation of a tensor.

    unit: what is counted: "record" counts observations; "step" counts steps, and records all
        observations of each n-th step.
    window: the number of steps after which counting begins anew; None or "run": never.

    `n` is None by default only so that somebody who passes the class `EveryN` itself as a mode gets
    a ModeError that explains it, instead of a TypeError.
    """

    n: int | None = None
    unit: Unit = "record"
    window: Window | None = None

    def __str__(self) -> str:
        unit = "" if self.unit == "record" else f":unit={self.unit}"
        window = "" if self.window is None else f":window={self.window}"
        return f"every_n:{self.n}{unit}{window}"


Mode: TypeAlias = All | Sum | Final | EveryN | Summary
ModeSpec: TypeAlias = "Mode | type[Mode] | str | Sequence[Mode | type[Mode] | str]"

_CHOICES = "All, Sum, Final, EveryN(n), Summary, or 'all', 'sum', 'final', 'summary', 'every_n:10'"
_CLASSES: dict[str, type[Mode]] = {
    "all": All,
    "sum": Sum,
    "final": Final,
    "summary": Summary,
    "every_n": EveryN,
}


def parse_mode(spec: Mode | type[Mode] | str) -> Mode:
    """Return the checked mode for `spec`: a mode, a mode's class (with defaults), or a mode's text.

    Raises ModeError where `spec` is no mode, or has an option that is unknown or out of range.
    """
    mode = spec
    if isinstance(spec, str):
        mode = _from_text(spec)
    elif isinstance(spec, type) and issubclass(spec, get_args(Mode)):
        mode = spec()
    if not isinstance(mode, All | Sum | Final | EveryN | Summary):
        raise ModeError(f"{spec!r} is not a mode; modes are {_CHOICES}")
    _check(mode)
    return mode


def parse_modes(spec: ModeSpec) -> tuple[Mode, ...]:
    """Return the checked modes of `spec`, which is one mode or a sequence of them.

    The modes come in the order given, each of them once. Raises ModeError for an empty sequence,
    and where `parse_mode` raises it.
    """
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        if not spec:
            raise ModeError(f"no mode was given; modes are {_CHOICES}")
        return tuple(dict.fromkeys(parse_mode(one) for one in spec))
    return (parse_mode(spec),)


def _from_text(text: str) -> Mode:
    head, *rest = text.strip().lower().split(":")
    if head not in _CLASSES:
        raise ModeError(f"unknown mode {quoted(text)}; modes are {_CHOICES}")
    options: dict[str, Any] = {}
    for part in rest:
        key, equals, value = part.partition("=")
        if not equals:
            key, value = "n", part
        if key in options:
            raise ModeError(f"mode {text!r} says {key} twice; modes are {_CHOICES}")
        options[key] = value if value in ("run", "record", "step") else _number(value, text)
    try:
        return _CLASSES[head](**options)
    except TypeError:
        raise ModeError(f"mode {text!r} has an option that {head} does not take") from None


def _number(value: str, text: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ModeError(f"mode {text!r}: {value!r} is not a whole number") from None


def _check(mode: Mode) -> None:
    if isinstance(mode, EveryN):
        _check_every_n(mode)
    elif isinstance(mode, Sum | Final):
        _check_window(mode, mode.window)


def _check_every_n(mode: EveryN) -> None:
    if mode.n is None:
        raise ModeError("EveryN needs a number, as in EveryN(10) or 'every_n:10'")
    if not _is_whole(mode.n):
        raise ModeError(f"EveryN takes a whole number, not {mode.n!r}")
    if mode.n < 1:
        raise ModeError(f"EveryN counts from 1, so EveryN({mode.n}) would never record")
    if mode.unit not in get_args(Unit):
        raise ModeError(f"EveryN counts in 'record' or 'step', not in {mode.unit!r}")
    if mode.window is None:
        return
    _check_window(mode, mode.window)
    if mode.unit == "step" and mode.window != "run" and mode.n > mode.window:
        raise ModeError(
            f"EveryN({mode.n}, unit='step') never comes due in a window of {mode.window} steps; "
            "make the window at least as long as n"
        )


def _check_window(mode: Mode, window: object) -> None:
    name = type(mode).__name__
    if window == "run":
        return
    if not _is_whole(window):
        raise ModeError(f"{name}: a window is a number of steps or 'run', not {window!r}")
    if window < 1:  # type: ignore[operator]  # _is_whole has seen that it is an int
        raise ModeError(f"{name}: a window is at least 1 step long, not {window}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
