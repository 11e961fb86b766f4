"""CUDA's copier, as far as it goes without a device: with a driver that is a stub."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import anchorlib
from anchorlib.capture.tensors import cuda, cuda_driver
from anchorlib.capture.tensors.cuda import CudaCopier
from anchorlib.recorder import Ring
from anchorlib.recorder.layout import SEQ_AT, TRIAL_AT, TRIAL_BYTES


def small_ring():
    return Ring(-1, 1 << 16, slots=16, new=True)


def enqueued(copier, ring, x, number=0):
    """Have `x` copied to the payload's first byte; what the copier says of it."""
    at = ring.address + ring.payload_at
    return copier.enqueue([(x, at)], ring.slot_address(number) + SEQ_AT, number + 1)


def of_payload(ring, x):
    return ring.memory[ring.payload_at : ring.payload_at + x.nbytes]


def settled(copier):
    """Wait for the threads that find out what a device reaches."""
    for thread in threading.enumerate():
        if thread.name == "anchorlib-cuda":
            thread.join(10)


@pytest.fixture
def not_capturing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def test_a_device_that_does_not_reach_the_ring_is_waited_for_and_that_is_told_once(
    not_capturing, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(cuda_driver, "_LIBRARY", "there-is-no-such-library")
    told = []
    ring = small_ring()
    copier = CudaCopier(ring, told.append)
    x = torch.arange(6.0).reshape(2, 3).t()
    for number in range(3):
        assert enqueued(copier, ring, x, number) is None
        settled(copier)
    assert of_payload(ring, x) == x.contiguous().numpy().tobytes()
    assert ring.slots["seq"][:3].tolist() == [1, 2, 3]
    (line,) = told
    assert "training waits for each copy of its tensors" in line
    assert copier.close()


def test_nothing_is_copied_into_a_graph(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    ring = small_ring()
    with pytest.raises(anchorlib.UnsupportedError):
        enqueued(CudaCopier(ring, print), ring, torch.ones(2))
    assert not ring.is_settled(0)


class Stream:
    """What torch's stream has, where all work is done at once."""

    cuda_stream = 7
    faults = False

    def __init__(self, device=None, priority=0):
        self.waited = []

    def wait_stream(self, other):
        self.waited.append(other)

    def synchronize(self):
        pass


STUB = """
#include <stdint.h>
#include <stddef.h>
int refuses = 0, state = 0;
static int mode = 0;
int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_STUB"; return 0; }
int cuMemHostRegister_v2(void *p, size_t n, unsigned flags) { return refuses ? 712 : flags != 3; }
int cuMemHostUnregister(void *p) { return 0; }
int cuMemHostGetDevicePointer_v2(uint64_t *d, void *p, unsigned flags) {
    *d = (uint64_t)p + 4096; return flags;
}
int cuStreamWriteValue64_v2(void *stream, uint64_t address, uint64_t value, unsigned flags) {
    if (stream != (void *)7 || flags) return 1;
    *(uint64_t *)(address - 4096) = value;
    return 0;
}
int cuStreamQuery(void *stream) { return mode == 2 ? state : 1; }
int cuThreadExchangeStreamCaptureMode(int *m) { int old = mode; mode = *m; *m = old; return 0; }
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    """A driver whose device is this machine, at other addresses."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "stub.c").write_text(STUB)
    library = folder / "libstub.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-w", folder / "stub.c", "-o", library], check=True
    )
    return library


@pytest.fixture
def driver(stub, not_capturing, monkeypatch):
    """The stub, in place of CUDA's driver, and streams that are none."""
    monkeypatch.setattr(cuda_driver, "_LIBRARY", str(stub))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the stream of the moment")
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda x, stream: None)
    library = ctypes.CDLL(str(stub))
    states = {name: ctypes.c_int.in_dll(library, name) for name in ("refuses", "state")}
    yield states
    for state in states.values():
        state.value = 0


def test_once_a_device_reaches_the_ring_nobody_waits_for_its_copies(driver, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: gate.wait(10))
    told = []
    ring = small_ring()
    copier = CudaCopier(ring, told.append)
    x = torch.arange(6.0).reshape(2, 3).t()
    assert enqueued(copier, ring, x, 0) is None
    gate.set()
    settled(copier)
    lane = enqueued(copier, ring, x, 1)
    assert lane is not None
    assert lane._stream.waited[-1] == "the stream of the moment"
    assert of_payload(ring, x) == x.contiguous().numpy().tobytes()
    assert ring.slots["seq"][:3].tolist() == [1, 2, 0]
    assert lane.is_idle
    assert told == []
    assert copier.close()
    assert enqueued(copier, ring, x, 2) is None  # who was about to copy waits for it now
    assert ring.is_settled(2)


def test_the_trial_of_a_device_touches_nothing_that_a_ring_needs(driver):
    ring = small_ring()
    before = ring.memory[:]
    copier = CudaCopier(ring, print)
    enqueued(copier, ring, torch.ones(0), 0)
    settled(copier)
    ring.slots["seq"][0] = 0
    after = ring.memory[:]
    places = [at for at in range(len(before)) if before[at] != after[at]]
    assert places
    assert all(TRIAL_AT <= at < TRIAL_AT + 2 * TRIAL_BYTES for at in places)
    copier.close()


def test_memory_that_cannot_be_locked_is_told_of_and_copies_are_waited_for(driver):
    driver["refuses"].value = 1
    told = []
    ring = small_ring()
    copier = CudaCopier(ring, told.append)
    for number in range(2):
        assert enqueued(copier, ring, torch.ones(2), number) is None
        settled(copier)
    (line,) = told
    assert "cuMemHostRegister: CUDA_ERROR_STUB (712)" in line
    assert copier.close()


@pytest.mark.parametrize(
    ("state", "idle"), [(0, True), (600, False), (201, False), (900, False), (700, True)]
)
def test_a_lane_is_idle_when_all_is_done_or_its_device_failed(driver, state, idle):
    ring = small_ring()
    copier = CudaCopier(ring, print)
    enqueued(copier, ring, torch.ones(2))
    settled(copier)
    lane = enqueued(copier, ring, torch.ones(2), 1)
    driver["state"].value = state
    assert lane.is_idle == copier.is_idle == idle
    copier.close()


def test_where_a_device_has_no_room_for_a_clone_its_tensor_is_waited_for(driver, monkeypatch):
    ring = small_ring()
    copier = CudaCopier(ring, print)
    x = torch.arange(4.0)
    enqueued(copier, ring, x)
    settled(copier)

    def full(x):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(cuda, "_clone", full)
    assert enqueued(copier, ring, x, 1) is None
    assert of_payload(ring, x) == x.numpy().tobytes()
    assert ring.is_settled(1)
    copier.close()


def test_a_record_outside_the_ring_is_waited_for(driver):
    ring = small_ring()
    copier = CudaCopier(ring, print)
    x = torch.arange(4.0)
    enqueued(copier, ring, x)
    settled(copier)
    memory = np.zeros(16, np.uint8)
    ready = ring.slot_address(1) + SEQ_AT
    assert copier.enqueue([(x, memory.ctypes.data)], ready, 2) is None
    assert memory.tobytes() == x.numpy().tobytes()
    copier.close()


def test_what_cannot_be_asked_of_the_driver_raises_nothing_into_training(driver, monkeypatch):
    """A driver that is older than the functions used here."""
    monkeypatch.setattr(cuda_driver, "_LIBRARY", None)  # this program, which has none of them
    told = []
    ring = small_ring()
    copier = CudaCopier(ring, told.append)
    assert enqueued(copier, ring, torch.ones(2)) is None
    settled(copier)
    assert len(told) == 1
    copier.close()
