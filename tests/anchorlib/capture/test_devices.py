"""Tensors on a device: what is recorded of them by copies that run later, and how CUDA's are made.

No test here needs a device. Those that do are in tests/gpu.
"""

from __future__ import annotations

import ctypes
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

import anchorlib
from anchorlib.capture import cuda, cuda_driver
from anchorlib.capture import recorder as recorder_module
from anchorlib.capture.cuda import CudaCopier
from anchorlib.capture.streams import Note
from anchorlib.dtypes import DTYPES as STORED
from anchorlib.record import Flag
from anchorlib.recorder import Ring, default_place
from anchorlib.recorder.layout import SEQ_AT, SLOT, TRIAL_AT, TRIAL_BYTES
from anchorlib.store.lock import is_locked, lock_path
from tests.devices import StandIn, copied
from tests.recording import recording


@pytest.fixture
def device(monkeypatch):
    """Every tensor is on a device, whose copies run when the test says so."""
    device = StandIn()
    monkeypatch.setattr(recorder_module, "CudaCopier", lambda ring, warn: device)
    monkeypatch.setattr(recorder_module, "compiled_putter", lambda ring, room: None)
    monkeypatch.setattr(recorder_module, "quick_place", lambda x: None)
    return device


def one_of(dtype):
    """Some of the numbers that bytes are when they are taken for `dtype`, in columns."""
    if dtype is torch.bool:
        return torch.tensor([[True, False, False, True]] * 3)[:, ::2]
    raw = torch.arange(dtype.itemsize * 24) * 37 % 256
    return raw.to(torch.uint8).view(dtype).view(4, 6)[:, ::2]


DTYPES = sorted({getattr(torch, name) for name in STORED if hasattr(torch, name)}, key=str)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_device_s_values_are_recorded_bit_by_bit(device, dtype):
    x = one_of(dtype)
    with recording() as run:
        anchorlib.anchor(x, "x", grad=False)
        device.run()
        (record,) = run.records("x")
    assert record.raw.tobytes() == x.contiguous().view(torch.uint8).numpy().tobytes()


def test_shapes_that_are_few_or_no_values_come_from_a_device_too(device):
    with recording() as run:
        anchorlib.anchor(torch.tensor(2.5), "scalar", grad=False)
        anchorlib.anchor(torch.empty(0, 3), "empty", grad=False)
        anchorlib.anchor(torch.tensor([1 + 2j]).conj(), "conj", grad=False)
        anchorlib.anchor(torch.tensor([1 + 2j]).conj().imag, "neg", grad=False)
        device.run()
        assert run.arrays("scalar")[0] == 2.5
        assert run.arrays("empty")[0].shape == (0, 3)
        assert run.arrays("conj")[0].tolist() == [1 - 2j]
        assert run.arrays("neg")[0].tolist() == [-2.0]


def test_a_step_on_a_device_waits_for_nothing_and_loses_nothing(device):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    with recording() as run:
        run.session.watch(model, optimizer=optimizer, tensors="*")
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        assert run.sink.records == []
        assert len(device.waiting) > 50
        device.run()
        names = run.names()
    assert {"0.weight@grad", "2@value", "0.bias@opt.exp_avg"} <= set(names)
    assert run.session.counters.dropped == 0


def test_what_a_mode_holds_back_comes_from_the_device_when_its_window_ends(device):
    x = torch.ones(3)
    with recording() as run:
        for _ in range(4):
            anchorlib.anchor(x, "last", mode=anchorlib.Final(2), grad=False)
            anchorlib.anchor(x, "sum", mode=anchorlib.Sum(2), grad=False)
            x = x + 1
            run.session.step()
        assert len(device.waiting) == 4
        device.run()
        assert [one.tolist() for one in run.arrays("last")] == [[2.0] * 3, [4.0] * 3]
        assert [one.tolist() for one in run.arrays("sum")] == [[3.0] * 3, [7.0] * 3]


def test_several_modes_take_a_device_s_tensor_at_once(device):
    with recording() as run:
        modes = [anchorlib.All, anchorlib.Summary, anchorlib.EveryN(1)]
        anchorlib.anchor(torch.ones(3), "x", mode=modes, grad=False)
        device.run()
        assert [r.mode for r in run.records("x")] == ["all", "summary", "every_n:1"]


def test_the_scale_of_a_gradient_is_not_waited_for_either(device):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with recording() as run:
        run.session.watch(model, optimizer=optimizer, tensors="weight@pass_grad")
        loss = model(torch.ones(1, 2)).sum()
        scaler.scale(loss).backward()
        (writes, _, _) = device.waiting[-1]
        assert len(writes) == 2
        device.run()
        scaler.step(optimizer)
        scaler.update()
        device.run()
        (record,) = run.records("weight", "pass_grad")
    assert record.scale == 1024.0
    assert record.flags & Flag.SCALED


@pytest.mark.parametrize("skipped", [0.0, 1.0])
def test_whether_a_step_was_skipped_is_not_waited_for_either(skipped):
    note = Note(torch.tensor(8.0), Flag.SCALED, torch.tensor([skipped]))
    at_once, fields = note.split(torch.device("cpu"))
    assert at_once.read() == (1.0, Flag.SCALED)
    slot = np.zeros(1, SLOT)
    for x, at in fields:
        copied(x, slot.ctypes.data + at)
    expected = Flag.SCALED | (Flag.STEP_SKIPPED if skipped else Flag.NONE)
    assert (slot["scale"][0], slot["flags"][0]) == (8.0, expected)
    assert note.split(torch.device("meta")) == (note, ())


def test_copies_refused_while_a_graph_is_captured_are_counted(device, monkeypatch, caplog):
    device.fault = anchorlib.UnsupportedError("nothing can be copied while a graph is captured")
    with recording() as run:
        anchorlib.anchor(torch.ones(2), "x", grad=False)
        device.fault = None
        anchorlib.anchor(torch.ones(2), "y", grad=False)
        device.run()
        assert run.names() == ["y@value"]
    assert run.session.counters.dropped == 1
    assert "while a graph is captured" in caplog.text


TRAINER = """
import os, signal, sys, time
import torch
import anchorlib
from anchorlib.capture import recorder
from tests.devices import StandIn

device = StandIn()
device.takes = lambda x: x.shape == (4, 2)
recorder.CudaCopier = lambda ring, warn: device
session = anchorlib.start("run1", store=sys.argv[1], recorder="process")
for n in range(300):
    anchorlib.anchor(torch.full((4, 4), float(n)), "x", grad=False)
    anchorlib.anchor(torch.full((4, 4), float(n))[:, ::2], "y", grad=False)
device.run(200)
device.run_in_part()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.skipif(default_place() != "process", reason="this system has no recorder process")
def test_a_killed_trainer_leaves_what_its_device_had_copied_whole_and_no_more(tmp_path):
    store = tmp_path / "anchors"
    done = subprocess.run([sys.executable, "-c", TRAINER, store], check=False, cwd=Path.cwd())
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 30
    while is_locked(lock_path(store, "run1", 0)) and time.monotonic() < deadline:
        time.sleep(0.01)
    run = anchorlib.open_run("run1", store)
    assert run["x"].values()[:, 0, 0].tolist() == [float(n) for n in range(300)]
    copied = run["y"].values()
    assert copied.tolist() == [[[float(n)] * 2] * 4 for n in range(200)]
    (gap,) = [gap for gap in run.gaps() if gap.name == "y"]
    assert gap.count == 100


# -- CUDA's copier, as far as it goes without a device


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
    assert "each of its tensors is waited for instead" in line
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


def test_once_a_device_reaches_the_ring_nobody_waits_for_its_copies(driver):
    told = []
    ring = small_ring()
    copier = CudaCopier(ring, told.append)
    x = torch.arange(6.0).reshape(2, 3).t()
    assert enqueued(copier, ring, x, 0) is None
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
