"""A simulated device, whose copies run when a test says so: late, in any order, in part, never."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import torch


def copied(x: Any, address: int, part: float = 1.0) -> None:
    """Copy the values of `x`, or the first part of their bytes."""
    with torch.no_grad():
        whole = x.detach().clone(memory_format=torch.contiguous_format) if is_tensor(x) else x
    start = whole.data_ptr() if is_tensor(x) else np.ascontiguousarray(x).ctypes.data
    ctypes.memmove(address, start, int(whole.nbytes * part))


def is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


class StandIn:
    """A copier whose one stream does nothing by itself.

    waiting: copies that were enqueued and have not run. It keeps what they are of, as a device's
    allocator does, and lets it go when they have run.
    """

    def __init__(self, ring: Any = None, warn: Any = None) -> None:
        self.waiting: list[tuple[list[tuple[Any, int]], int, int]] = []
        self.is_broken = False
        self.fault: BaseException | None = None
        self.late_fault: BaseException | None = None  # comes when the copy was enqueued
        self.closed = False
        self.came = threading.Event()
        self.unlocked: list[bool] = []  # of each copy, whether its thread held no lock
        self.lock: Any = None

    def takes(self, x: Any) -> bool:
        return True

    def enqueue(self, writes: Any, ready_address: int, value: int) -> StandIn:
        if self.lock is not None:
            self.unlocked.append(not self.lock._is_owned())
        if self.fault is not None:
            raise self.fault
        self.waiting.append((list(writes), ready_address, value))
        self.came.set()
        if self.late_fault is not None:
            raise self.late_fault
        return self

    @property
    def is_idle(self) -> bool:
        return self.is_broken or not self.waiting

    def run(self, count: int | None = None, at: int = 0) -> None:
        """Let the next copies run, all of them unless told; the first is the one at `at`."""
        for _ in range(len(self.waiting) if count is None else count):
            writes, ready_address, value = self.waiting[at]
            for x, address in writes:
                copied(x, address)
            ctypes.c_uint64.from_address(ready_address).value = value
            del self.waiting[at]  # not before: while a copy runs its device is not idle

    def run_in_part(self) -> None:
        """Let the next copy run half."""
        x, address = self.waiting[0][0][0]
        copied(x, address, 0.5)

    def run_by_itself(self) -> threading.Thread:
        """Let copies run as they come, until all that end with the session have."""

        def work() -> None:
            while not self.closed or self.waiting:
                if self.waiting:
                    self.run(1)
                else:
                    self.came.wait(0.001)
                    self.came.clear()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def close(self) -> bool:
        self.closed = True
        return not self.waiting
