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
to `start`, `watch` or `anchor`. `str(mode)` is the text that `parse_mode` reads back.

A fold is the state of one mode on one stream: which window is open, and what was added up in it so
far. It knows nothing of tensors: what copying and adding mean is the caller's `Arithmetic`, so that
sums are computed on the device where the tensors are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args

from anchorlib.errors import ModeError
from anchorlib.names import quoted

__all__ = [
    "All",
    "Arithmetic",
    "EveryN",
    "Final",
    "Fold",
    "Mode",
    "ModeSpec",
    "OpenWindow",
    "Sum",
    "Summary",
    "idle",
    "parse_mode",
    "parse_modes",
]

Window: TypeAlias = int | Literal["run"]
Unit: TypeAlias = Literal["record", "step"]
Shape: TypeAlias = tuple[int, ...]
X = TypeVar("X", contravariant=True)
P = TypeVar("P")


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

    unit: "record" counts observations; "step" counts steps, and records all observations of each
        n-th step.
    window: a number of steps, or "run": counting restarts at the beginning of each window.

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

    Raises ModeError, a different sentence for each fault.
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

    The modes come in the order given, each of them once. Raises ModeError.
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


class Arithmetic(Protocol[X, P]):
    """The operations on arrays that a fold needs.

    X is the type of observed arrays, P that of the arrays that a fold keeps. A fold touches arrays
    only by these operations, so it works on numpy arrays and on torch tensors alike.
    """

    def copy(self, x: X, /) -> P:
        """Return a copy of `x` that does not change when `x` is changed later."""

    def recopy(self, kept: P, x: X, /) -> P:
        """Return a copy of `x`, written into the memory of `kept` where `x` fits into it."""

    def widen(self, x: X, /) -> P:
        """Return a copy of `x` in the wide dtype in which sums are computed."""

    def add(self, kept: P, x: X, /) -> None:
        """Add `x` to `kept`, in place."""

    def shapes(self, kept: P, x: X, /) -> tuple[Shape, Shape]:
        """Return the shapes of `kept` and of `x`."""


@dataclass(slots=True)
class OpenWindow(Generic[P]):
    """A window of steps that is not over: what its observations were folded into so far.

    window: the window's number. kept: the sum, or the last observation. at: the coordinates of the
        last observation. count: how many observations there were. refused: None, or two shapes that
        differ, so that nothing more can be added.
    """

    window: int
    kept: P
    at: Any
    count: int = 1
    refused: tuple[Shape, Shape] | None = None


class Fold(Generic[X, P]):
    """The state of one mode on one stream.

    A stream is the observations of one tensor, kind and phase.

    `wants` counts an observation and says whether the mode selects it. If `holds` is true (Sum,
    Final), the caller passes each selected observation to `hold`, which folds it into the open
    window and returns the window before, if that has ended. If `holds` is false, the caller emits
    each selected observation at once. A window in which shapes differed is returned with `refused`
    set to both shapes: the caller counts it as a gap instead of recording it.
    """

    __slots__ = ("_arithmetic", "_counted", "_counting_window", "held", "mode")

    def __init__(self, mode: Mode, arithmetic: Arithmetic[X, P]) -> None:
        self.mode = mode
        self._arithmetic = arithmetic
        self.held: OpenWindow[P] | None = None
        self._counted = 0
        self._counting_window: int | None = None

    @property
    def holds(self) -> bool:
        """Whether observations wait in a window (Sum, Final) instead of being emitted at once."""
        return isinstance(self.mode, Sum | Final)

    def idle(self, step: int) -> bool:
        """Return whether the mode selects nothing in `step`: the tensor need not be observed."""
        return idle(self.mode, step)

    def wants(self, step: int) -> bool:
        """Count one observation made in `step`, and return whether the mode selects it."""
        mode = self.mode
        if not isinstance(mode, EveryN):
            return True
        if mode.unit == "step":
            return _is_due(mode, step)
        assert mode.n is not None
        if (
            mode.window is not None
            and (k := _window_of(step, mode.window)) != self._counting_window
        ):
            self._counting_window, self._counted = k, 0
        self._counted += 1
        return self._counted % mode.n == 0

    def hold(self, step: int, at: Any, x: X) -> OpenWindow[P] | None:
        """Fold `x`, observed in `step`, into the window of `step`.

        at: the coordinates of the observation.
        Returns the window that was open before, if `step` lies outside of it; else None.
        """
        mode = self.mode
        assert isinstance(mode, Sum | Final)
        ended = self.close(step)
        held = self.held
        if held is None:
            take = self._arithmetic.widen if isinstance(mode, Sum) else self._arithmetic.copy
            self.held = OpenWindow(_window_of(step, mode.window), take(x), at)
            return ended
        held.at = at
        if isinstance(mode, Final):
            held.kept = self._arithmetic.recopy(held.kept, x)
        else:
            self._add(held, x)
        return ended

    def close(self, step: int | None = None) -> OpenWindow[P] | None:
        """Close and return the open window unless it contains `step`; None if none was closed.

        step: None closes the window in any case.
        """
        held = self.held
        if held is None:
            return None
        if step is not None:
            assert isinstance(self.mode, Sum | Final)
            if _window_of(step, self.mode.window) == held.window:
                return None
        self.held = None
        return held

    def _add(self, held: OpenWindow[P], x: X) -> None:
        shape, other = self._arithmetic.shapes(held.kept, x)
        if held.refused is None and shape != other:
            held.refused = (shape, other)
        if held.refused is None:
            self._arithmetic.add(held.kept, x)
        held.count += 1  # last: what could not be added is not counted as part of the sum


def idle(mode: Mode, step: int) -> bool:
    """Return whether `mode` selects nothing that is observed in `step`."""
    return isinstance(mode, EveryN) and mode.unit == "step" and not _is_due(mode, step)


def _is_due(mode: EveryN, step: int) -> bool:
    assert mode.n is not None
    into = step if mode.window is None else _into(step, mode.window)
    return (into + 1) % mode.n == 0


def _window_of(step: int, window: Window) -> int:
    return 0 if window == "run" else step // window


def _into(step: int, window: Window) -> int:
    return step if window == "run" else step % window
