"""`anchor noise`: the user's command, perturbed; and what it says when that fails."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest

import anchorlib
from tests.cli.made import anchor, environment, spawn
from tests.recording import trouble
from tests.warm import warm_python

pytestmark = pytest.mark.slow

TRAIN = """
import sys
import torch, anchorlib
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with anchorlib.start(*sys.argv[1:2]) as session:
    session.watch(model, tensors="*", optimizer=optimizer)
    for _ in range(2):
        model(torch.ones(4, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
print("trained", *sys.argv[2:])
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store with `run1`, which the script names itself, and the command that made it."""
    place = tmp_path_factory.mktemp("made")
    script = place / "train.py"
    script.write_text(TRAIN)
    command = [warm_python(), str(script), "run1", "--lr", "a b"]
    subprocess.run(
        command, env=environment(ANCHOR_STORE=str(place / "runs")), check=True, capture_output=True
    )
    return place / "runs", command


@pytest.fixture
def recorded(made, tmp_path):
    """A copy of that store, and the command."""
    store, command = made
    shutil.copytree(store, tmp_path / "runs")
    return tmp_path / "runs", command


@pytest.mark.parametrize("told", [True, False], ids=["given", "from the header"])
def test_three_perturbed_runs_and_the_line_to_compare_with(recorded, told):
    store, command = recorded
    done = spawn("noise", "run1", "--store", store, *(["--", *command] if told else []))
    assert done.returncode == 0, done.stderr
    names = [f"run1-noise{seed}" for seed in (1, 2, 3)]
    *said, line = done.stdout.splitlines()
    assert said == names
    noise = " ".join(f"--noise {name}" for name in names)
    assert line == shlex.join(["anchor", "compare", "run1", "OTHER"]) + f" {noise} --store {store}"
    assert set(trouble(done.stderr).splitlines()) <= {"trained --lr a b"}

    first = anchorlib.open_run("run1", store)["0.weight@value"].at(step=0).array
    starts = [anchorlib.open_run(name, store)["0.weight@value"].at(step=0).array for name in names]
    for start in starts:
        assert (start != first).all()
        assert np.abs(start / first - 1).max() <= 2**-22
    assert len({start.tobytes() for start in starts}) == 3


def test_json_names_the_runs(recorded):
    store, command = recorded
    done = spawn("noise", "run1", "--runs", 1, "--store", store, "--json", "--", *command)
    assert done.returncode == 0, done.stderr
    assert '"noise": ["run1-noise1"]' in " ".join(done.stdout.split())


def test_a_command_that_fails_is_one_line_and_exit_code_1(recorded):
    store, _ = recorded
    done = anchor(
        "noise", "run1", "--store", store, "--", sys.executable, "-c", "raise SystemExit(3)"
    )
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "ended with exit code 3 under ANCHOR_PERTURB=1:float32" in done.err
    assert done.out == ""


def test_a_command_that_is_not_there_is_exit_code_1(recorded):
    store, _ = recorded
    done = anchor("noise", "run1", "--store", store, "--", "no-such-program")
    assert (done.code, done.out) == (1, "")
    assert "`no-such-program` cannot be run: No such file or directory" in done.err


def test_a_command_that_records_another_run_is_told(recorded):
    store, _ = recorded
    done = anchor("noise", "run1", "--store", store, "--", sys.executable, "-c", "pass")
    assert done.code == 1
    assert "recorded no run1-noise1" in done.err


def test_an_older_noise_run_is_not_taken_for_a_new_one(recorded):
    store, command = recorded
    assert spawn("noise", "run1", "--runs", 1, "--store", store, "--", *command).returncode == 0
    done = anchor(
        "noise", "run1", "--eps", "1e-3", "--store", store, "--", sys.executable, "-c", "pass"
    )
    assert done.code == 1
    assert "is an older run" in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "no run 'nothing'"),
        (["run1", "--eps", "int32"], "not 'int32'"),
        (["run1", "--eps", "2"], "not '2'"),
    ],
)
def test_what_cannot_be_is_exit_code_2(recorded, arguments, said):
    store, _ = recorded
    done = anchor("noise", *arguments, "--store", store)
    assert done.code == 2
    assert said in done.err
