"""Graft: at every anchor a training records its own values, and goes on with another run's.

    with anchorlib.start("b") as session, anchorlib.graft("a"):
        train()                                  # every tensor is made from what run a had there

ANCHOR_GRAFT=A in the environment grafts run A onto every session of the process, which then records
the run A-graft. Such a run records its own values, computed from A's. So a record that differs from
A's was computed differently: every independent cause shows in one run, even those downstream of
another cause.

How the values of A, bit for bit, get into the training:

    values        in place, below autograd: the graph stays, and an operation that saved its output
                  (tanh, softmax, relu) sees A's values in backward too
    gradients     returned by the tensor's hook, in the layout of the gradient that is replaced
    parameters,   in place: gradients before the optimizer's step, values and state after it,
    state         parameters and buffers when a pass begins

Only eager code is grafted. Values that could not be handed over are counted in the run's header.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from anchorlib.capture.counting import CallCoordinates
from anchorlib.capture.recording import ScaleAndFlags
from anchorlib.capture.tensors import is_plain, undisturbed
from anchorlib.errors import AnchorError, UnknownTensorError
from anchorlib.names import escape, join
from anchorlib.scope import Steps

if TYPE_CHECKING:
    from anchorlib.reading import Run, Series

__all__ = ["VARIABLE", "Graft"]

VARIABLE: Final = "ANCHOR_GRAFT"

_log = logging.getLogger("anchorlib")
_NAMED = 3  # most tensors that a log line names
_MOST = 100  # most tensors that the header names

_ABSENT = "the other run has no record of it there"
_KINDS = "it has another shape or element type there"
_UNUSUAL = "it is no dense array with memory of its own for each element"
_SCALED = "it carries another loss scale"


class Graft:
    """Replaces the values of a training at its anchors by those of a recorded run.

    Its methods may be called from any thread.

    run, rank: the recorded run, and the rank of it whose records are taken. steps: the steps in
        which values are replaced; None: all steps.
    """

    def __init__(self, run: Run, rank: int, steps: Steps | None = None) -> None:
        self._run = run
        self._rank = rank
        self._steps = steps
        self._series: dict[tuple[str, str], Series | None] = {}
        self._places: dict[tuple[str, str], dict[CallCoordinates, int]] = {}
        self._lock = threading.Lock()
        self.handed = 0
        self.skipped: Counter[str] = Counter()
        self._missing: dict[str, str] = {}  # by selector, the first reason it was not handed over

    # -- handing over

    def in_place(
        self, name: str, kind: str, at: CallCoordinates, x: torch.Tensor, scaling: ScaleAndFlags
    ) -> None:
        """Overwrite `x` with the value that the other run recorded at these coordinates.

        `x` is left as it is, and counted as skipped, where the other run has no such record, where
        the record has no values or another shape, dtype or loss scale, or where `x` is no dense
        array with memory of its own for each element. In steps in which nothing is to be replaced,
        nothing is done or counted.
        name, kind: those under which `x` is recorded. scaling: the loss scale of `x`.
        """
        theirs = self._theirs(name, kind, at, x, scaling)
        if theirs is None:
            return
        if _overlaps(x):
            self._skip(name, kind, _UNUSUAL)
            return
        self.handed += 1
        with undisturbed(), torch.no_grad():
            # `.data` does not count up the version of `x`, so the graph stays valid.
            x.data.copy_(theirs)

    def gradient(
        self, name: str, kind: str, at: CallCoordinates, x: torch.Tensor, scaling: ScaleAndFlags
    ) -> torch.Tensor | None:
        """Return the recorded gradient that replaces the gradient `x`; None where no record fits.

        A record fits if it has values, and has the name, kind, coordinates, shape, dtype and loss
        scale of `x`. If no record fits, `x` is counted as skipped. In steps in which nothing is to
        be replaced, None is returned and nothing is counted.
        name, kind: those under which `x` is recorded. scaling: the loss scale of `x`.
        """
        theirs = self._theirs(name, kind, at, x, scaling)
        if theirs is None:
            return None
        self.handed += 1
        with undisturbed(), torch.no_grad():
            return _laid_out_as(x, theirs)

    def _theirs(
        self, name: str, kind: str, at: CallCoordinates, x: torch.Tensor, scaling: ScaleAndFlags
    ) -> torch.Tensor | None:
        if self._steps is not None and at.step not in self._steps:
            return None
        try:
            theirs = self._read(name, kind, at, x, scaling)
        except AnchorError as fault:
            self._skip(name, kind, str(fault))
            return None
        if isinstance(theirs, str):
            self._skip(name, kind, theirs)
            return None
        return theirs

    def _read(
        self, name: str, kind: str, at: CallCoordinates, x: torch.Tensor, scaling: ScaleAndFlags
    ) -> torch.Tensor | str:
        """Return the other run's tensor at these coordinates, or a text on why it cannot be used.

        It can be used in place of `x`, whose name, kind and loss scale the other arguments are, if
        it has the shape, dtype and loss scale of `x`.
        """
        from anchorlib.reading import as_tensor  # the store is loaded where it is read

        series = self._series_of(name, kind)
        index = None if series is None else self._places[name, kind].get(at)
        if series is None or index is None:
            return _ABSENT
        if not is_plain(x):
            return _UNUSUAL
        record = series.record(index)
        if record.raw is None:
            return "the other run did not keep its values"
        if record.shape != tuple(x.shape) or f"torch.{record.dtype}" != str(x.dtype):
            return _KINDS
        if record.scale != scaling.read()[0]:
            return _SCALED
        return as_tensor(np.array(record.raw), record.dtype).reshape(x.shape)

    def _series_of(self, name: str, kind: str) -> Series | None:
        key = (name, kind)
        with self._lock:
            if key not in self._series:
                series = self._find(name, kind)
                self._places[key] = {} if series is None else _places(series)
                self._series[key] = series
            return self._series[key]

    def _find(self, name: str, kind: str) -> Series | None:
        """Return the run's series of a tensor, preferably of mode "all"; None if there is none."""
        for mode in ("all", None):
            try:
                return self._run.series(name, kind, rank=self._rank, mode=mode)
            except UnknownTensorError:
                continue
        return None

    # -- telling

    def _skip(self, name: str, kind: str, reason: str) -> None:
        self.skipped[reason] += 1
        self._missing.setdefault(join(name, kind), reason)

    def begin(self, header: Callable[[str, Any], None]) -> None:
        """Note in the header of the recorded run which other run is grafted.

        The note is made at the start, since the process may die later.

        header: writes a header entry, given its key and value.
        """
        header("grafted", self._run.name)

    def end(self, header: Callable[[str, Any], None]) -> None:
        """Note in the header, and log, how many tensors were replaced, and which were not.

        header: writes an entry of the recorded run's header, given its key and value.
        """
        header("grafted.handed_over", self.handed)
        header("grafted.not_handed_over", dict(list(self._missing.items())[:_MOST]))
        count = sum(self.skipped.values())
        if not count:
            _log.info("anchorlib: %d tensors took the values of %s", self.handed, self._run.name)
            return
        named = [f"{escape(one)} ({why})" for one, why in list(self._missing.items())[:_NAMED]]
        more = len(self._missing) - _NAMED
        _log.warning(
            "anchorlib: %d tensors took the values of %s, %d could not: %s%s",
            self.handed,
            escape(self._run.name),
            count,
            ", ".join(named),
            f" and {more} more" if more > 0 else "",
        )


def _places(series: Series) -> dict[CallCoordinates, int]:
    """Return the index of a record in `series`, by the record's coordinates.

    Where several records have equal coordinates, the index is that of the last.
    """
    columns = series.columns
    each = (columns[name].tolist() for name in ("step", "pass_index", "call", "phase"))
    return {CallCoordinates(*one): index for index, one in enumerate(zip(*each, strict=True))}


def _laid_out_as(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return `values` with the strides of `x`, as the order of later sums depends on strides.

    `x` may have been expanded from fewer elements (stride 0), as the gradient of a sum is. The
    result is then expanded too, if `values` are equal along the expanded axes.
    """
    once = values
    for axis, (stride, size) in enumerate(zip(x.stride(), x.shape, strict=True)):
        if stride == 0 and size > 1:
            once = once.narrow(axis, 0, 1)
    if once is not values and torch.equal(once.expand_as(values), values):
        return once.clone().expand_as(values)
    return torch.empty_like(x).copy_(values)


def _overlaps(x: torch.Tensor) -> bool:
    """Return whether elements of `x` may share memory, so that writing one changes another."""
    sizes = sorted(
        (stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1
    )
    reach = 0
    for stride, size in sizes:
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
