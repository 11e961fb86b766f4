"""The parameters and buffers of a watched model, recorded as a pass begins.

Each parameter or buffer is recorded once in a step and phase, and again in a later pass of the step
if its bits have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from anchorlib.capture.counting import CallCoordinates
from anchorlib.capture.eager import Observer
from anchorlib.capture.headers import StartingValues
from anchorlib.capture.naming import NamedMembers
from anchorlib.capture.recording import UNSCALED, NameStreams, Stream
from anchorlib.capture.tensors import (
    known_sizes,
    plain,
    plain_inside,
    skip_reason,
    tensor_parts,
    undisturbed,
)
from anchorlib.summary import as_storage, digest
from anchorlib.torch_private import own_buffers

__all__ = ["ModelState"]

PlanOf = Callable[[str], NameStreams]
"""Returns the plan of a name: what is recorded of it."""


class ModelState:
    """Records the parameters and buffers of one model.

    parts: the named parts of the model. starts: is given, at the first pass, digests of the
        parameters and buffers that are not recorded.
    """

    def __init__(self, parts: NamedMembers, observer: Observer, starts: StartingValues) -> None:
        self._parts = parts
        self._observer = observer
        self._values: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._starts: StartingValues | None = starts  # None once they are noted

    def observe(self, at: CallCoordinates, plan_of: PlanOf) -> None:
        """Record the selected parameters and buffers as a pass begins.

        Each is recorded once in a step and phase, and again in a later pass of the step if its bits
        changed. The first call also notes digests of the parameters and buffers that are not
        selected. Under `anchorlib.graft`, the recorded ones are overwritten with the other run's
        values.
        at: the coordinates of the pass. plan_of: returns what is recorded of a name.
        """
        self._note_starts(at, plan_of)
        for name, tensor in self._tensors():
            try:
                streams = plan_of(name).streams("value", at.phase)
                if streams and not all(stream.idle(at.step) for stream in streams):
                    self._record_value(name, streams, at, tensor)
            except Exception as fault:  # noqa: BLE001  # inside a user's forward: training goes on
                self._observer.fault(name, "value", fault)

    def _note_starts(self, at: CallCoordinates, plan_of: PlanOf) -> None:
        """Note digests of the parameters and buffers that are not recorded, in the header.

        Only the first call does this. at: the coordinates of the pass that begins. plan_of: returns
        what is recorded of a name.
        """
        starts, self._starts = self._starts, None
        if starts is not None:
            unrecorded = [
                (name, partial(_size_and_bits, tensor))
                for name, tensor in self._tensors()
                if not plan_of(name).streams("value", at.phase)
            ]
            self._observer.guarded(lambda: starts.note(at.step, unrecorded))

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        tensors: list[tuple[str, torch.Tensor]] = list(self._parts.parameters.items())
        for name, (module, local) in self._parts.buffers.items():
            buffers = own_buffers(module)  # the buffers of a ScriptModule have no `get`
            buffer = buffers[local] if local in buffers else None  # noqa: SIM401
            if buffer is not None:  # the module may have set it to None since
                tensors.append((name, buffer))
        return tensors

    def _record_value(
        self, name: str, streams: tuple[Stream, ...], at: CallCoordinates, tensor: torch.Tensor
    ) -> None:
        now = (at.step, _bits(tensor))
        # Edits of `.data` and fused optimizers do not count up `_version`: only the bits tell.
        if self._values.get((name, at.phase)) == now:
            return
        self._values[name, at.phase] = now
        if name in self._parts.buffers:
            self._observer.lineage.see_buffer(name, at, known_sizes(tensor))
        self._observer.recorder.observe(streams, at, tensor)
        if self._observer.graft is not None:
            self._observer.graft.in_place(name, "value", at, tensor, UNSCALED)
            self._values[name, at.phase] = (at.step, _bits(tensor))


def _size_and_bits(tensor: torch.Tensor) -> tuple[int, bytes]:
    """Return the number of bytes that `tensor` has on this rank, and a digest of its bits.

    Of a sharded tensor, a rank has a part. Size 0 and an empty digest are returned for a tensor
    without values to read.
    """
    try:
        bits = _bits(tensor)
    except Exception:  # noqa: BLE001  # lazy parameters, and those whose memory FSDP gave back
        bits = b""
    return (plain_inside(tensor).nbytes if bits else 0), bits


def _bits(tensor: torch.Tensor) -> bytes:
    """Return a digest of the present bits of `tensor`; empty if it cannot be recorded."""
    with undisturbed():
        inside = plain_inside(tensor)
        if skip_reason(inside) is not None:
            return b""
        parts = tensor_parts(inside) or {"": inside}
        storages = [as_storage(plain(part))[0] for part in parts.values()]
    return b"".join(map(digest, storages))
