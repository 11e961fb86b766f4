"""Tensors on a device: what is recorded of them by copies that run later.

No test here needs a device. Those that do are in tests/gpu.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import anchorlib
from anchorlib.capture.recording import recorder as recorder_module
from anchorlib.capture.recording.streams import ScaleAndFlags
from anchorlib.dtypes import DTYPES as STORED
from anchorlib.record import Flag
from anchorlib.recorder import default_place
from anchorlib.recorder.layout import SLOT
from anchorlib.store.disk.lock import is_locked, lock_path
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
    scaling = ScaleAndFlags(torch.tensor(8.0), Flag.SCALED, torch.tensor([skipped]))
    at_once, fields = scaling.split(torch.device("cpu"))
    assert at_once.read() == (1.0, Flag.SCALED)
    slot = np.zeros(1, SLOT)
    for x, at in fields:
        copied(x, slot.ctypes.data + at)
    expected = Flag.SCALED | (Flag.STEP_SKIPPED if skipped else Flag.NONE)
    assert (slot["scale"][0], slot["flags"][0]) == (8.0, expected)
    assert scaling.split(torch.device("meta")) == (scaling, ())


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
from anchorlib.capture.recording import recorder
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
