"""Copies from CUDA devices into the ring, for which no training thread waits.

    x ──clone, in the training's current stream──▶ memory of the device
                  ──copy, in a stream of ours──▶ ring ──▶ the last word of its slot

The ring is host memory in which records wait for the recorder; a slot is a record's entry there,
and its last word says that the record is complete. The clone keeps the values that `x` has at the
anchor, whatever the training writes to `x` next. It takes about a hundredth of the time of the
copy, which then runs while the training goes on. The device's allocator reuses the clone's memory
once the copy has run.

A device can write to the ring only after the ring's pages are locked, which takes a moment: a
thread locks them when the first tensor comes. Until then, and where locking fails, the training
thread waits for each copy, without holding a lock.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import torch

from anchorlib.capture.tensors.cuda_driver import Driver, DriverError
from anchorlib.capture.tensors.snapshot import undisturbed, values_writer
from anchorlib.errors import UnsupportedError
from anchorlib.recorder import Ring
from anchorlib.recorder.layout import TRIAL_AT, TRIAL_BYTES

__all__ = ["CudaCopier"]

_CLOSE_SECONDS: Final = 2.0

Writes = Sequence[tuple[torch.Tensor, int]]


class CudaCopier:
    """Copies CUDA tensors into `ring`, with a lane (a stream of copies) for each device.

    warn: called with a text to log where a device cannot write to the ring.
    """

    def __init__(self, ring: Ring, warn: Callable[[str], None]) -> None:
        self._ring, self._warn = ring, warn
        self._end = ring.address + len(ring.memory)
        self._lanes: dict[
            torch.device, CudaLane | None
        ] = {}  # None: not open yet, or it failed to open
        self._driver: Driver | None = None  # once the ring is registered
        self._opening = threading.Lock()
        self._closed = False

    def takes(self, x: torch.Tensor) -> bool:
        """Return whether `x` is on a CUDA device, so that this copier can copy it."""
        return x.is_cuda

    def enqueue(self, writes: Writes, ready_address: int, value: int) -> CudaLane | None:
        """Have tensors copied to addresses, and then `value` written to `ready_address`.

        This implements `anchorlib.recorder.copies.Copier.enqueue`. If the device has a lane, the
        call does not wait for the copies; else it returns when they are made.

        writes: tensors of one device, each with the address of its copy. value: the word that says
            to readers of `ready_address` that the copies are complete.

        Returns the lane in which the writes wait; None where they are done already. Raises
        UnsupportedError while a CUDA graph is captured.
        """
        if torch.cuda.is_current_stream_capturing():
            raise UnsupportedError("nothing can be copied while a CUDA graph is captured")
        lane = self._lane(writes[0][0].device)
        if lane is not None and self._ring.address <= writes[0][1] < self._end:
            try:
                if lane.enqueue(writes, ready_address, value):
                    return lane
            except torch.OutOfMemoryError:
                pass  # copy below, without a clone
        for x, address in writes:
            values_writer(x)(address)
        ctypes.c_uint64.from_address(ready_address).value = value
        return None

    @property
    def is_idle(self) -> bool:
        """Whether no device has copies left to make."""
        return all(lane is None or lane.is_idle for lane in list(self._lanes.values()))

    def _lane(self, device: torch.device) -> CudaLane | None:
        if device not in self._lanes and not self._closed:
            self._lanes[device] = None
            _started(lambda: self._open(device))
        return self._lanes.get(device)

    def _open(self, device: torch.device) -> None:
        """Open the lane (stream of copies) of `device`; warn if it cannot write to the ring."""
        try:
            with self._opening:
                if not self._closed:
                    self._lanes[device] = self._opened(device)
        except Exception as fault:  # noqa: BLE001  # tensors are still copied, with waiting
            self._warn(
                f"{device} cannot write to the memory in which records wait "
                f"({type(fault).__name__}: {fault}); training waits for each copy of its tensors"
            )

    def _opened(self, device: torch.device) -> CudaLane:
        torch.cuda.set_device(device)  # affects only this thread
        driver = self._driver or Driver()
        with driver.beside_captures():
            lane = CudaLane(device, self._ring, driver)
            if self._driver is None:
                self._ring.warm(self._ring.payload_bytes)  # faults pages in before the driver locks
                driver.register(self._ring.address, len(self._ring.memory))
                self._driver = driver
            lane.open()
        return lane

    def close(self) -> bool:
        """Unlock the ring's pages once all copies are made; wait at most 2 seconds for both.

        Returns whether that time sufficed; if not, the ring's memory must stay mapped. False is
        also returned where no thread can start to do the work.
        """
        self._closed = True
        if not self._lanes:
            return True
        thread = _started(self._give_up)
        if thread is None:
            return False
        # Do not wait for a device that hangs; the memory that it may still write to stays mapped.
        thread.join(_CLOSE_SECONDS)
        return not thread.is_alive()

    def _give_up(self) -> None:
        with self._opening:
            lanes = [lane for lane in self._lanes.values() if lane is not None]
            if self._driver is None:
                return
            with suppress(Exception), self._driver.beside_captures():
                for lane in lanes:
                    torch.cuda.set_device(lane.device)
                    lane.shut()
                self._driver.unregister(self._ring.address)


class CudaLane:
    """The copies from one device into the ring, made in order in a CUDA stream of ours."""

    def __init__(self, device: torch.device, ring: Ring, driver: Driver) -> None:
        self.device, self._ring, self._driver = device, ring, driver
        # torch has 32 streams of each priority, and gives them out in turn: programs seldom take
        # streams of this priority, so that ours is shared with none.
        self._stream = torch.cuda.Stream(device, priority=-1)
        # A tensor made under inference_mode could not be written outside it.
        with torch.inference_mode(False):
            self._memory = torch.frombuffer(ring.memory, dtype=torch.uint8)
        with torch.cuda.stream(self._stream):  # the first work of this thread on this device
            self._trial = torch.arange(TRIAL_BYTES, dtype=torch.uint8, device=device)
        self._guard = threading.RLock()  # reentrant, since a signal handler may call `anchor`
        self._is_shut = False
        self._base = ring.address
        self._there = 0  # the ring's address on the device
        # Other allocators warn if `record_stream` is given the stream that the memory was made in.
        self._tells_streams = torch.cuda.get_allocator_backend() == "native"

    @property
    def is_idle(self) -> bool:
        """Whether all copies from this device to the ring are made."""
        return self._driver.is_idle(self._stream.cuda_stream)

    def open(self) -> None:
        """Test the lane: have the device write some bytes to the ring, and wait for them.

        Raises DriverError if they do not arrive.
        """
        self._there = self._driver.device_address(self._base)
        word = TRIAL_AT + TRIAL_BYTES
        with torch.cuda.stream(self._stream):
            self.enqueue([(self._trial, self._base + TRIAL_AT)], self._base + word, self._base)
        self._stream.synchronize()
        memory = memoryview(self._ring.memory)
        came = bytes(memory[TRIAL_AT:word]), bytes(memory[word : word + 8])
        if came != (bytes(range(TRIAL_BYTES)), self._base.to_bytes(8, "little")):
            raise DriverError("the bytes that the device wrote did not arrive")

    def enqueue(self, writes: Writes, ready_address: int, value: int) -> bool:
        """Have tensors copied to addresses in the ring, then `value` written to `ready_address`.

        The call clones the tensors on the device, and does not wait for the copies.

        writes: tensors, each with the address of its copy. value: the word that says that the
            copies are complete.

        Returns True, or after `shut` False: then nothing is copied.
        Raises OutOfMemoryError where the device has no memory for clones.
        """
        current = torch.cuda.current_stream(self.device)
        with undisturbed(), torch.inference_mode(False), torch.no_grad():
            if self._tells_streams:
                with suppress(RuntimeError):  # x may be a mode's snapshot from another stream
                    _tell_stream([x for x, _ in writes], current)
            clones = [(_clone(x), address) for x, address in writes if x.numel()]
            with self._guard:
                if self._is_shut:
                    return False
                self._stream.wait_stream(current)
                if current != self._stream:
                    _tell_stream([clone for clone, _ in clones], self._stream)
                self._copy(clones, ready_address, value)
        return True

    def _copy(self, clones: Writes, ready_address: int, value: int) -> None:
        try:
            with torch.cuda.stream(self._stream):
                for clone, address in clones:
                    self._place(clone, address).copy_(clone, non_blocking=True)
                there = ready_address - self._base + self._there
                self._driver.write(self._stream.cuda_stream, there, value)
        except Exception:
            self.finish()  # before the ring gives this memory to another record
            raise

    def _place(self, x: torch.Tensor, address: int) -> torch.Tensor:
        at = address - self._base
        return self._memory[at : at + x.nbytes].view(x.dtype).view(x.shape)

    def shut(self) -> None:
        """Accept no more copies from this device, and wait until those accepted are made."""
        with self._guard:
            self._is_shut = True
        self.finish()

    def finish(self) -> None:
        """Wait until all copies from this device to the ring are made."""
        with suppress(RuntimeError):  # a device that has failed copies nothing either
            self._stream.synchronize()


def _started(work: Callable[[], None]) -> threading.Thread | None:
    """Return a started thread that does `work`; None where no thread can start, as at exit."""
    thread = threading.Thread(target=work, name="anchorlib-cuda", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def _clone(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _tell_stream(tensors: list[torch.Tensor], stream: torch.cuda.Stream) -> None:
    """Make the allocator wait for the present work in `stream` before it reuses tensors' memory."""
    for x in tensors:
        x.record_stream(stream)
