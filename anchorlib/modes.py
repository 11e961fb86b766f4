"""Modes: which observations of a tensor become records, and how they are folded together.

    mode                       emits
    All                        every observation
    Sum(window=1)              one record a window: the sum, in a wide dtype, with its count
    Final(window=1)            the last observation of each window
    EveryN(n, unit, window)    the n-th, 2n-th, … observation, or all of every n-th step
    Summary                    every observation, its summary row alone

A mode acts on the observations of one tensor, kind, phase and rank, each for itself. Window k is
the steps k·w … (k+1)·w − 1, absolute step numbers; the last, unfinished one is emitted at close.
Modes are frozen values and check nothing themselves: `parse_mode` does, where a mode meets
`start`, `watch` or `anchor`. `str(mode)` is the text that `parse_mode` reads back.

A fold is a mode at work on one stream. It knows nothing of tensors: what copying and adding mean
is the caller's `Arithmetic`, so that sums are taken where the tensors are.
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
    """Every observation."""

    def __str__(self) -> str:
        return "all"


@dataclass(frozen=True, slots=True)
class Summary:
    """Every observation, its summary row alone; no values are kept."""

    def __str__(self) -> str:
        return "summary"


@dataclass(frozen=True, slots=True)
class Sum:
    """One record a window of `window` steps (an int, or "run"): the sum of its observations.

    Sums are taken in a wide dtype: half and fp8 in float32, float32 and float64 in float64,
    integers and bool in int64, complex in complex128. `Record.count` says how many were added.
    """

    window: Window = 1

    def __str__(self) -> str:
        return "sum" if self.window == 1 else f"sum:window={self.window}"


@dataclass(frozen=True, slots=True)
class Final:
    """The last observation of each window of `window` steps (an int, or "run")."""

    window: Window = 1

    def __str__(self) -> str:
        return "final" if self.window == 1 else f"final:window={self.window}"


@dataclass(frozen=True, slots=True)
class EveryN:
    """The n-th, 2n-th, … observation; unit="step": all observations of each n-th step.

    With `window`, counting restarts at each window. `n` is None only so that the class itself
    can be refused where it meets a session, with a sentence instead of a traceback.
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
    """The checked mode that `spec` means: a mode, its class (its defaults), or its text.

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
    """The checked modes of one mode or of several, without repetition, in the order given."""
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
    """The operations that a fold needs on the arrays it observes (X) and on those it keeps (P).

    A fold works on numpy arrays and on torch tensors alike, since it touches them by these alone.
    """

    def copy(self, x: X, /) -> P:
        """A copy of `x` that later changes of `x` do not reach."""

    def recopy(self, kept: P, x: X, /) -> P:
        """A copy of `x`, in the place of `kept` where it fits."""

    def widen(self, x: X, /) -> P:
        """A copy of `x` in the wide dtype that sums are taken in."""

    def add(self, kept: P, x: X, /) -> None:
        """Add `x` to `kept`, in place."""

    def shapes(self, kept: P, x: X, /) -> tuple[Shape, Shape]:
        """The shapes of both."""


@dataclass(slots=True)
class OpenWindow(Generic[P]):
    """An open window: what was folded so far, and where its last observation was made."""

    window: int
    kept: P
    at: Any
    count: int = 1
    refused: tuple[Shape, Shape] | None = None


class Fold(Generic[X, P]):
    """One mode at work on one stream of observations.

    `wants` counts an observation and says whether it is selected. Where the mode `holds`, `hold`
    folds it into the open window and gives back the window before it, if that has ended; all
    others are emitted by the caller at once. A window in which shapes differed comes back with
    `refused` set to both shapes: it is to be counted, not recorded.
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
        """Whether nothing observed in `step` can be selected, so that it need not be observed."""
        return idle(self.mode, step)

    def wants(self, step: int) -> bool:
        """Count one observation made in `step`; whether the mode selects it."""
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
        """Fold `x`, observed in `step` at `at`, into its window; the window before it, if ended."""
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
        """The open window if it does not hold `step` (None: whatever is open); else None."""
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
    """Whether `mode` can select nothing that is observed in `step`."""
    return isinstance(mode, EveryN) and mode.unit == "step" and not _is_due(mode, step)


def _is_due(mode: EveryN, step: int) -> bool:
    assert mode.n is not None
    into = step if mode.window is None else _into(step, mode.window)
    return (into + 1) % mode.n == 0


def _window_of(step: int, window: Window) -> int:
    return 0 if window == "run" else step // window


def _into(step: int, window: Window) -> int:
    return step if window == "run" else step % window
