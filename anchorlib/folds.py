"""Folds: what a mode does with the observations of one tensor, one after the other.

A fold is the state of one mode on one stream (the observations of one tensor, kind and phase):
which window of steps is open, and what was added up in it so far. A fold knows nothing of tensors:
the caller's `Arithmetic` copies and adds, so that sums are computed on the device where the tensors
are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from anchorlib.modes import EveryN, Final, Mode, Sum, Window

__all__ = ["Arithmetic", "Fold", "OpenWindow", "idle"]

Shape: TypeAlias = tuple[int, ...]
X = TypeVar("X", contravariant=True)
P = TypeVar("P")


class Arithmetic(Protocol[X, P]):
    """The operations on arrays that a fold (the state of a mode on one tensor) needs.

    X is the type of observed arrays, P that of the arrays that a fold keeps. A fold touches arrays
    only by these operations, so it works on numpy arrays and on torch tensors alike.
    """

    def copy(self, x: X, /) -> P:
        """Return a copy of `x` that does not change when `x` is changed later."""

    def recopy(self, kept: P, x: X, /) -> P:
        """Return a copy of `x`: in the memory of `kept` if `x` fits into it, else in new memory."""

    def widen(self, x: X, /) -> P:
        """Return a copy of `x` in the wide dtype in which sums are computed."""

    def add(self, kept: P, x: X, /) -> None:
        """Add `x` to `kept`, in place."""

    def shapes(self, kept: P, x: X, /) -> tuple[Shape, Shape]:
        """Return the shapes of `kept` and of `x`."""


@dataclass(slots=True)
class OpenWindow(Generic[P]):
    """A window of steps that is not over, with the sum or the last of its observations so far.

    window: the window's number.
    kept: the sum (mode Sum), or the last observation (mode Final).
    at: the coordinates of the last observation.
    count: how many observations Sum was given; 1 for Final.
    refused: None, or two shapes that differ: from then on nothing more is added to the sum.
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
        """Count one observation made in `step`, and return whether the mode selects it.

        It has to be called once for each observation, as some modes select every n-th.
        """
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
        """Fold `x`, observed in `step`, into the window of `step`; only for modes Sum and Final.

        If another window is open, close it first and return it; else return None.
        at: the coordinates of the observation.
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

        step: None closes the open window in any case. The window is not returned a second time.
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
