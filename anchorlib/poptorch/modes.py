"""Translates PopTorch's output modes into anchorlib's modes.

PopTorch's window is one call of the model: `deviceIterations` weight updates, each of
`gradientAccumulation` micro-batches. anchorlib's window is a number of steps, and a step is one
weight update.

    OutputMode      anchorlib's mode, with W updates in a call
    All             All()
    Sum             Sum(window=W)
    Final           Final(window=W)
    EveryN, n       EveryN(n, window=W): the n-th, 2n-th, … micro-batch, counted anew in each call

A return period (the n of EveryN), which PopTorch's compiler PopART checks when it compiles a model,
is checked here when a model is built.
"""

from __future__ import annotations

from dataclasses import dataclass

from anchorlib.modes import All, EveryN, Final, Mode, Sum
from anchorlib.poptorch.enums import OutputMode
from anchorlib.poptorch.errors import MisuseError

__all__ = ["Window", "check_mode", "mode_for"]


@dataclass(frozen=True, slots=True)
class Window:
    """How many weight updates and micro-batches one call of a model has.

    updates: weight updates in a call; 1 for an inference model, whose call is one step.
    passes: micro-batches in each update.
    """

    updates: int
    passes: int

    @property
    def batches(self) -> int:
        """The number of micro-batches in a call."""
        return self.updates * self.passes


def check_mode(mode: OutputMode | None, period: int | None, *, what: str) -> int:
    """Check a mode and its return period, and return the period: 1 for a mode other than EveryN.

    Raises MisuseError for a mode that is no OutputMode, and for EveryN with a period that is not a
    whole number from 1 on.

    mode: None is accepted, too.
    period: looked at for EveryN alone.
    what: names the option in messages.
    """
    if mode is not None and not isinstance(mode, OutputMode):
        raise MisuseError(f"{what}: {mode!r} is no poptorch.OutputMode")
    if mode is not OutputMode.EveryN:
        return 1
    if not isinstance(period, int) or isinstance(period, bool) or period < 1:
        raise MisuseError(
            f"{what}: EveryN needs output_return_period, a whole number from 1, not {period!r}"
        )
    return period


def mode_for(
    mode: OutputMode, period: int, window: Window, *, what: str, per_update: bool = False
) -> Mode:
    """Return the mode of anchorlib that records what PopTorch would return for one tensor.

    period: the n of EveryN, in micro-batches; other modes ignore it.
    what: names the option or anchor in messages.
    per_update: whether the tensor is made once in each weight update, not in each micro-batch.

    Raises MisuseError for a period of EveryN that does not divide the number of micro-batches in a
    call; with `per_update` also for a period that neither divides the number of micro-batches in an
    update nor is a multiple of it.
    """
    if mode is OutputMode.All:
        return All()
    if mode is OutputMode.Sum:
        return Sum(window.updates)
    if mode is not OutputMode.EveryN:
        return Final(window.updates)
    _check_period(period, window, what)
    if not per_update:
        return EveryN(period, window=window.updates)
    if window.passes % period and period % window.passes:
        raise MisuseError(
            f"{what}: it is made once in {window.passes} micro-batches, at the weight update; "
            f"a return period of {period} has to divide that, or be a multiple of it"
        )
    return EveryN(max(1, period // window.passes), window=window.updates)


def _check_period(period: int, window: Window, what: str) -> None:
    batches = window.batches
    batches_of_call = (
        f"the {batches} micro-batches of a call (deviceIterations × gradientAccumulation)"
    )
    if period > batches:
        raise MisuseError(
            f"{what}: a return period of {period} has to be at most {batches_of_call}"
        )
    if batches % period:
        raise MisuseError(
            f"{what}: a return period of {period} has to be a factor of {batches_of_call}; "
            "otherwise every call would give back other micro-batches"
        )
