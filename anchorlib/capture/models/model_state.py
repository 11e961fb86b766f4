"""The parameters and buffers of a watched model, recorded as a pass begins.

Each parameter or buffer is recorded once in a step and phase, and again in a later pass of the step
if its bits have changed. What lies on a CUDA device is digested there. The thread waits for these
digests in later passes alone, once a pass; they are not even made in steps that are expected to
have one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from anchorlib.capture.counting import CallCoordinates
from anchorlib.capture.eager import Observer
from anchorlib.capture.headers import StartingValues
from anchorlib.capture.naming import NamedMembers
from anchorlib.capture.recording import UNSCALED, NameStreams, Stream
from anchorlib.capture.tensors import (
    changed,
    device_digest,
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


class _Found(NamedTuple):
    """A parameter or buffer as a pass begins.

    bits: a digest: bytes, or a tensor on the device of `tensor`; None where none was needed.
    """

    name: str
    streams: tuple[Stream, ...]
    tensor: torch.Tensor
    bits: bytes | torch.Tensor | None


class ModelState:
    """Records the parameters and buffers of one model.

    parts: the named parts of the model. starts: is given, at the first pass, digests of the
        parameters and buffers that are not recorded.
    """

    def __init__(self, parts: NamedMembers, observer: Observer, starts: StartingValues) -> None:
        self._parts = parts
        self._observer = observer
        # Of what was recorded in the last step of a phase: the step, and the digest.
        self._recorded: dict[tuple[str, str], tuple[int, bytes | torch.Tensor | None]] = {}
        self._passes: dict[str, tuple[int, int]] = {}  # of a phase: its last step, the passes in it
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
        expects_more = self._count_pass(at)
        found = []
        for name, tensor in self._tensors():
            try:
                streams = plan_of(name).streams("value", at.phase)
                if streams and not all(stream.idle(at.step) for stream in streams):
                    bits = _bits(tensor) if expects_more or not _is_on_device(tensor) else None
                    found.append(_Found(name, streams, tensor, bits))
            except Exception as fault:  # noqa: BLE001  # inside a user's forward: training goes on
                self._observer.fault(name, "value", fault)
        for one in self._changed(at, found):
            try:
                self._record_value(one, at)
            except Exception as fault:  # noqa: BLE001  # inside a user's forward: training goes on
                self._observer.fault(one.name, "value", fault)

    def _count_pass(self, at: CallCoordinates) -> bool:
        """Count the pass that begins; return whether its step is expected to have another.

        A step is expected to have several if it has, or if the last one of its phase had.
        """
        step, passes = self._passes.get(at.phase, (None, 2))
        self._passes[at.phase] = (at.step, passes + 1 if step == at.step else 1)
        return passes > 1 or step == at.step

    def _changed(self, at: CallCoordinates, found: list[_Found]) -> list[_Found]:
        """Return those of `found` that are not recorded in this step and phase with these bits."""
        equal: set[str] = set()
        before: list[torch.Tensor] = []
        now: list[torch.Tensor] = []
        asked: list[str] = []
        for name, _, _, bits in found:
            step, recorded = self._recorded.get((name, at.phase), (None, None))
            if step != at.step or type(bits) is not type(recorded):
                continue
            if isinstance(bits, torch.Tensor) and isinstance(recorded, torch.Tensor):
                before.append(recorded)
                now.append(bits)
                asked.append(name)
            elif bits is not None and bits == recorded:
                equal.add(name)
        if asked:
            try:
                equal.update(
                    name
                    for name, differs in zip(asked, changed(before, now), strict=True)
                    if not differs
                )
            except Exception as fault:  # noqa: BLE001  # inside a user's forward: they are recorded
                self._observer.fault(asked[0], "value", fault)
        return [one for one in found if one.name not in equal]

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

    def _record_value(self, found: _Found, at: CallCoordinates) -> None:
        name, streams, tensor, bits = found
        # Edits of `.data` and fused optimizers do not count up `_version`: only the bits tell.
        self._recorded[name, at.phase] = (at.step, bits)
        if name in self._parts.buffers:
            self._observer.lineage.see_buffer(name, at, known_sizes(tensor))
        self._observer.recorder.observe(streams, at, tensor)
        if self._observer.graft is not None:
            self._observer.graft.in_place(name, "value", at, tensor, UNSCALED)
            self._recorded[name, at.phase] = (at.step, None if bits is None else _bits(tensor))


def _is_on_device(tensor: torch.Tensor) -> bool:
    """Return whether `tensor` lies on a device for which a thread would have to wait."""
    return tensor.is_cuda


def _size_and_bits(tensor: torch.Tensor) -> tuple[int, bytes]:
    """Return the number of bytes that `tensor` has on this rank, and a digest of its bits.

    Of a sharded tensor, a rank has a part. Size 0 and an empty digest are returned for a tensor
    without values to read.
    """
    try:
        bits = _bytes_digest(tensor)
    except Exception:  # noqa: BLE001  # lazy parameters, and those whose memory FSDP gave back
        bits = b""
    return (plain_inside(tensor).nbytes if bits else 0), bits


def _bits(tensor: torch.Tensor) -> bytes | torch.Tensor:
    """Return a digest of the present bits of `tensor`: made on its device if it lies on one."""
    if not _is_on_device(tensor):
        return _bytes_digest(tensor)
    with undisturbed():
        parts = _parts(tensor)
        if not parts:
            return b""
        digests = [device_digest(part) for part in parts if _is_on_device(part)]
    return digests[0] if len(digests) == 1 else device_digest(torch.stack(digests))


def _bytes_digest(tensor: torch.Tensor) -> bytes:
    """Return a digest of the present bits of `tensor`; empty if it cannot be recorded."""
    with undisturbed():
        storages = [as_storage(plain(part))[0] for part in _parts(tensor)]
    return b"".join(map(digest, storages))


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the plain tensors inside `tensor`; none if it cannot be recorded."""
    inside = plain_inside(tensor)
    if skip_reason(inside) is not None:
        return []
    parts = tensor_parts(inside) or {"": inside}
    return list(parts.values())
