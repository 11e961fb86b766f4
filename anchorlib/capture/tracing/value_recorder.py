"""Records whole tensors of traced operations, as `trace(values=...)` selects them.

Inputs are recorded right before an operation runs and outputs right after it, so that a tensor
which an operation changes in place is recorded both before and after. A tensor without plain values
(sparse, quantized, of a dtype that no record can have) becomes a gap of the trace, as does a tensor
that only ever exists inside a compiled kernel.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final

import torch

from anchorlib.capture.counting import CallCoordinates, Clock
from anchorlib.capture.recording import Recorder
from anchorlib.capture.tensors import dtype_name, is_plain
from anchorlib.capture.tracing.value_selection import Called, WantedValues
from anchorlib.modes import All
from anchorlib.names import MAX_NAME_BYTES
from anchorlib.operations import VALUES, made_kinds, taken_kind

__all__ = ["ValueRecorder"]

_MODES: Final = ((All(), None),)


class ValueRecorder:
    """Records the values of selected operations.

    wanted: the selectors. on_gap: receives the reason why values were not recorded.
    """

    def __init__(
        self, wanted: WantedValues, recorder: Recorder, clock: Clock, on_gap: Callable[[str], None]
    ) -> None:
        self.wanted = wanted
        self._recorder, self._clock, self._on_gap = recorder, clock, on_gap
        self._calls: defaultdict[tuple[str, int, str], count[int]] = defaultdict(count)
        self._running: dict[int, CallCoordinates] = {}

    def forget(self) -> None:
        """Count the calls of each operation from 0 again, because a step has ended."""
        self._calls.clear()
        self._running.clear()

    def before(
        self, called: Called, pass_index: int, names: Iterable[str], tensors: Iterable[torch.Tensor]
    ) -> None:
        """Record selected inputs of an operation that is about to run, and count the call.

        pass_index: the pass in which the operation runs. names, tensors: those inputs whose memory
        has been written.
        """
        self.begin(called, pass_index)
        for name, x in zip(names, tensors, strict=True):
            self.keep(called, taken_kind(name), x)

    def after(self, called: Called, names: Iterable[str], tensors: Iterable[torch.Tensor]) -> None:
        """Record selected outputs of the operation that has run.

        names, tensors: its outputs, which are what it returned ("out") and the arguments it wrote.
        """
        for kind, x in zip(made_kinds(names), tensors, strict=True):
            self.keep(called, kind, x)

    def begin(self, called: Called, pass_index: int) -> None:
        """Count a call of an operation; the count is the `call` coordinate of its records.

        pass_index: the pass in which the operation runs.
        """
        phase = self._clock.phases.here
        number = next(self._calls[called.name, pass_index, phase])
        self._running[threading.get_ident()] = CallCoordinates(
            self._clock.step, pass_index, number, phase
        )

    def keep(self, called: Called, kind: str, x: torch.Tensor) -> None:
        """Record the present values of `x`, a tensor of the running operation, if it is selected.

        kind: "op.in.ARGUMENT" or "op.out". A selected tensor that cannot be recorded is a gap.
        """
        if not self.wanted.takes(called, kind):
            return
        if not is_plain(x):
            self.miss(called, kind, _unkept(x))
        elif len(called.name.encode()) > MAX_NAME_BYTES:
            self.miss(called, kind, "the operation's module has too long a name")
        else:
            at = self._running[threading.get_ident()]
            streams = self._recorder.streams(called.name, kind, _MODES, at.phase)
            self._recorder.observe(streams, at, x)

    def miss(self, called: Called, kind: str, why: str) -> None:
        """Note a gap if a tensor is selected: it was not recorded, for the reason `why`."""
        if self.wanted.takes(called, kind):
            self._on_gap(f"{VALUES} {called.op}: {why}")

    def miss_unmatched(self) -> list[str]:
        """Note a gap for each selector that selected nothing; return the selectors' texts."""
        unmatched = self.wanted.unmatched
        for text in unmatched:
            self._on_gap(f"{VALUES} operations named {text!r}: no traced operation is")
        return unmatched


def _unkept(x: torch.Tensor) -> str:
    """Return why the values of `x` cannot be recorded, in words for the reason of a gap."""
    if x.layout is not torch.strided:
        return f"a tensor of layout {str(x.layout).removeprefix('torch.')} is not kept whole"
    if x.is_nested or x.device.type == "meta":
        return f"a {'nested' if x.is_nested else 'meta'} tensor is not kept whole"
    return f"a tensor of {dtype_name(x.dtype)} is not kept whole"
