"""What is recorded from a GPU of CUDA: `make gpu` on a machine that has one."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import anchorlib
from anchorlib.capture.sessions.active import active_session
from anchorlib.dtypes import DTYPES as STORED
from anchorlib.recorder import default_place
from anchorlib.store.disk.lock import is_locked, lock_path
from tests.recording import recording

if not torch.cuda.is_available():
    pytest.skip("there is no GPU of CUDA here", allow_module_level=True)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]
DEVICE = "cuda"
ROOT = Path(__file__).parents[2]


def reach_ring():
    """Anchor until the GPU reaches the ring, as it does after the first tensor and a moment."""
    anchorlib.anchor(torch.zeros(1, device=DEVICE), "first", grad=False)
    for thread in threading.enumerate():
        if thread.name == "anchorlib-cuda":
            thread.join(60)
    copier = active_session()._queue._copier
    assert all(lane is not None for lane in copier._lanes.values()), "see the log for the reason"


@pytest.fixture
def waits_are_errors():
    """Whatever makes torch wait for the GPU raises."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


def busy(seconds=0.3):
    """Keep the current stream of the GPU at work."""
    torch.cuda._sleep(int(seconds * 1.5e9))


def one_of(dtype):
    if dtype is torch.bool:
        return torch.tensor([[True, False, False, True]] * 3, device=DEVICE)[:, ::2]
    raw = torch.arange(dtype.itemsize * 24) * 37 % 256
    return raw.to(torch.uint8).view(dtype).view(4, 6).to(DEVICE)[:, ::2]


DTYPES = sorted({getattr(torch, name) for name in STORED if hasattr(torch, name)}, key=str)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gpu_s_values_are_recorded_bit_by_bit(dtype):
    x = one_of(dtype)
    with recording() as run:
        reach_ring()
        anchorlib.anchor(x, "x", grad=False)
        (record,) = run.records("x")
    assert record.raw.tobytes() == x.cpu().contiguous().view(torch.uint8).numpy().tobytes()


def test_views_that_are_lazy_and_shapes_without_values_come_from_a_gpu_too():
    z = torch.tensor([1 + 2j], device=DEVICE)
    with recording() as run:
        reach_ring()
        anchorlib.anchor(torch.tensor(2.5, device=DEVICE), "scalar", grad=False)
        anchorlib.anchor(torch.empty(0, 3, device=DEVICE), "empty", grad=False)
        anchorlib.anchor(z.conj(), "conj", grad=False)
        anchorlib.anchor(z.conj().imag, "neg", grad=False)
        assert run.arrays("scalar")[0] == 2.5
        assert run.arrays("empty")[0].shape == (0, 3)
        assert run.arrays("conj")[0].tolist() == [1 - 2j]
        assert run.arrays("neg")[0].tolist() == [-2.0]


def test_tensors_of_inference_mode_come_from_a_gpu_too():
    with recording() as run:
        reach_ring()
        with torch.inference_mode():
            anchorlib.anchor(torch.full((3, 3), 2.0, device=DEVICE).t(), "x")
        assert run.arrays("x")[0].tolist() == [[2.0] * 3] * 3


def test_a_record_is_what_the_tensor_was_at_the_anchor_whatever_comes_next():
    with recording() as run:
        reach_ring()
        x = torch.zeros(1 << 20, device=DEVICE)
        busy()
        for n in range(20):
            x.fill_(n)
            anchorlib.anchor(x, "x", grad=False)
            x.fill_(-1)
        del x
        other = torch.full((1 << 20,), -2.0, device=DEVICE)  # perhaps in the same memory
        arrays = run.arrays("x")
        assert float(other[0]) == -2.0
    assert [sorted(set(one.tolist())) for one in arrays] == [[float(n)] for n in range(20)]


def test_a_tensor_may_go_at_once_after_its_anchor():
    with recording() as run:
        reach_ring()
        busy()
        for n in range(50):
            anchorlib.anchor(torch.full((1 << 16,), float(n), device=DEVICE), "x", grad=False)
        arrays = run.arrays("x")
    assert [(one.min(), one.max()) for one in arrays] == [(n, n) for n in range(50)]


def test_work_in_streams_of_the_user_is_followed_in_their_order():
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    with recording() as run:
        reach_ring()
        for n in range(20):
            with torch.cuda.stream(streams[n % 2]):
                x = torch.zeros(1 << 18, device=DEVICE)
                busy(0.005)
                x += n
                anchorlib.anchor(x, "x", grad=False)
        arrays = run.arrays("x")
    assert [(one.min(), one.max()) for one in arrays] == [(n, n) for n in range(20)]


def trained(model, steps, waits_are_errors=None):
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(16, 64, device=DEVICE)
    with recording(tensors="*") as run:
        run.session.watch(model, optimizer=optimizer, tensors="*")
        reach_ring()
        if waits_are_errors:
            waits_are_errors()
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
        torch.cuda.set_sync_debug_mode("default")
        recorded = {name: run.arrays(*name.split("@")) for name in run.names()}
    return recorded, run.session.counters


def small():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).to(
        DEVICE
    )


def test_nothing_waits_for_the_gpu_while_it_trains(waits_are_errors):
    recorded, counters = trained(small(), 4, waits_are_errors)
    assert counters.dropped == 0
    assert sum(counters.skipped.values()) == 0
    assert len(recorded["0.weight@grad"]) == 4


def test_the_scale_of_a_gradient_is_not_waited_for(waits_are_errors):
    model = small()
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)
    with recording() as run:
        run.session.watch(model, tensors="0.weight@pass_grad")
        reach_ring()
        loss = model(torch.ones(1, 64, device=DEVICE)).sum()
        scaled = scaler.scale(loss)
        waits_are_errors()
        scaled.backward()
        torch.cuda.set_sync_debug_mode("default")
        (record,) = run.records("0.weight", "pass_grad")
    assert record.scale == 1024.0


def test_an_observed_training_computes_what_an_unobserved_one_does():
    plain, observed = small(), small()
    optimizer = torch.optim.AdamW(plain.parameters())
    x = torch.ones(16, 64, device=DEVICE)
    for _ in range(4):
        optimizer.zero_grad()
        plain(x).square().sum().backward()
        optimizer.step()
    trained(observed, 4)
    for one, other in zip(plain.parameters(), observed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_modes_hold_back_and_add_up_on_the_gpu(waits_are_errors):
    x = torch.ones(1000, device=DEVICE)
    with recording() as run:
        reach_ring()
        waits_are_errors()
        for _ in range(4):
            anchorlib.anchor(x, "last", mode=anchorlib.Final(2), grad=False)
            anchorlib.anchor(x, "sum", mode=anchorlib.Sum(2), grad=False)
            x += 1
            run.session.step()
        torch.cuda.set_sync_debug_mode("default")
        assert [one[0] for one in run.arrays("last")] == [2.0, 4.0]
        assert [one[0] for one in run.arrays("sum")] == [3.0, 7.0]


# -- where there is no room, and where nothing comes


@pytest.mark.parametrize("on_full", ["block", "drop"])
def test_a_full_queue_does_what_it_is_told_and_tears_nothing(on_full):
    with recording(queue_bytes=8 << 20, on_full=on_full) as run:
        reach_ring()
        for n in range(100):
            anchorlib.anchor(torch.full((1 << 18,), float(n), device=DEVICE), "x", grad=False)
        records = run.records("x")
        lost = run.session._queue.lost
    whole = [r.array for r in records if r.raw is not None]
    assert all(one.min() == one.max() for one in whole)
    numbers = [one.item(0) for one in whole]
    assert numbers == (sorted(numbers) if on_full == "drop" else list(range(100)))
    assert len(records) + lost == 100


def test_a_record_larger_than_the_queue_comes_from_a_gpu_too():
    with recording(queue_bytes=1 << 20) as run:
        reach_ring()
        x = torch.arange(1 << 20, device=DEVICE)
        anchorlib.anchor(x, "x", grad=False)
        assert (run.arrays("x")[0] == x.cpu().numpy()).all()


def test_closing_waits_no_longer_than_told_for_a_gpu_that_is_busy(tmp_path):
    session = anchorlib.start("run1", store=tmp_path)
    reach_ring()
    session.flush()
    busy(15)
    for _ in range(10):
        anchorlib.anchor(torch.ones(4, device=DEVICE), "x", grad=False)
    session.close(0.5)
    assert not torch.cuda.current_stream().query()  # it is still at work
    torch.cuda.synchronize()
    run = anchorlib.open_run("run1", tmp_path)
    assert sum(gap.count for gap in run.gaps()) == 10


def test_a_graph_is_captured_as_if_nothing_was_watched():
    model = small()
    x = torch.ones(16, 64, device=DEVICE)
    with recording() as run:
        run.session.watch(model, tensors="*@value")
        reach_ring()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            model(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            y = model(x)
        graph.replay()
        torch.cuda.synchronize()
        skipped = sum(run.session.counters.skipped.values())
    with torch.no_grad():
        torch.testing.assert_close(y, model(x))
    assert skipped > 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU here")
def test_two_gpus_have_their_own_ways_into_one_ring():
    with recording() as run:
        reach_ring()
        for n in range(40):
            anchorlib.anchor(torch.full((4096,), n, device=f"cuda:{n % 2}"), "x", grad=False)
        assert [one[0] for one in run.arrays("x")] == list(range(40))


KILLED = """
import os, signal, sys
import torch
import anchorlib
from tests.gpu.test_cuda import busy, reach_ring

session = anchorlib.start("run1", store=sys.argv[1], recorder="process")
reach_ring()
for n in range(300):
    if n == 200:
        torch.cuda.synchronize()
        busy(3)
    anchorlib.anchor(torch.full((1 << 16,), float(n), device="cuda"), "x", grad=False)
os.kill(os.getpid(), signal.SIGKILL)
"""

FAILED = """
import sys
import torch
import anchorlib
from tests.gpu.test_cuda import reach_ring

session = anchorlib.start("run1", store=sys.argv[1])
reach_ring()
for n in range(10):
    anchorlib.anchor(torch.full((4,), float(n), device="cuda"), "x", grad=False)
torch.cuda.synchronize()
x = torch.ones(4, device="cuda")
bad = x[torch.tensor([1 << 20], device="cuda")]  # a fault of the device
try:
    anchorlib.anchor(bad, "bad", grad=False)
except Exception as fault:
    print("raised", type(fault).__name__)
session.flush(60)
print("flushed")
session.close(5)
print("closed")
"""


@pytest.mark.skipif(default_place() != "process", reason="this system has no recorder process")
def test_what_a_killed_trainer_had_copied_from_its_gpu_is_stored_whole(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while is_locked(lock_path(tmp_path, "run1", 0)) and time.monotonic() < deadline:
        time.sleep(0.05)
    arrays = anchorlib.open_run("run1", tmp_path)["x"].values()
    assert len(arrays) >= 200
    assert [(one.min(), one.max()) for one in arrays] == [(n, n) for n in range(len(arrays))]


def test_a_gpu_that_fails_ends_no_flush_and_no_close_of_ours(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FAILED, tmp_path],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "flushed\nclosed" in done.stdout, done.stderr
    assert "raised" not in done.stdout
    arrays = anchorlib.open_run("run1", tmp_path)["x"].values()
    assert [one[0] for one in arrays] == list(range(10))
