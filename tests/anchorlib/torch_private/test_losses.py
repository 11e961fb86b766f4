"""Without any one private name of torch training goes on, bit for bit, and the loss is said.

A name that stands for a thing of another kind counts as gone: one training a door shows both.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from anchorlib.torch_private import DOORS, AffectedPrograms
from tests.between_workers import made_once
from tests.warm import warm_python

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parent / "without.py"
NOTHING = "nothing at all"
pytestmark = pytest.mark.slow  # a training for each door
EAGER = [
    name for name, door in DOORS.items() if door.at_once and door.reach is AffectedPrograms.EAGER
]
TRACED = [
    name for name, door in DOORS.items() if door.at_once and door.reach is AffectedPrograms.TRACED
]
COMPILED = [
    name for name, door in DOORS.items() if door.at_once and door.reach is AffectedPrograms.COMPILED
]


def trained(store, names, *options):
    program = shutil.copy(PROGRAM, store)  # beside no repository, which each header would ask
    command = [warm_python(), str(program), str(store), *options, "none", NOTHING, *names]
    done = subprocess.run(command, capture_output=True, timeout=500, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def told(printed):
    lines = [json.loads(line) for line in printed.splitlines()]
    return {one["name"]: one for one in lines}


@pytest.fixture(scope="module")
def eager(tmp_path_factory):
    store = tmp_path_factory.mktemp("eager")
    return told(made_once("losses-eager", lambda: trained(store, [*EAGER, *TRACED])))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    store = tmp_path_factory.mktemp("compiled")
    return told(made_once("losses-compiled", lambda: trained(store, COMPILED, "--compiled")))


def check(told, name):
    one = told[name]
    assert "raised" not in one, one["raised"]
    assert one["bits"] == told["none"]["bits"]
    assert one["same"], "what our modules get where the name is gone"
    assert one["gone"] == DOORS[name].said
    other = one["gone"].replace(f"has no {name}", f"has another {name}, of type int")
    said = [line for line in one["said"] if line == f"anchorlib: {other}"]
    assert len(said) == 1, one["said"]
    found = [line for line in one["said"] if " has no " in line or " has another " in line]
    assert [line for line in found if name not in line] == []


@pytest.mark.parametrize("name", EAGER)
def test_training_goes_on_without(eager, name):
    check(eager, name)
    assert eager[name]["header"]["torch.moved"] == [name]


@pytest.mark.parametrize("name", TRACED)
def test_a_traced_training_goes_on_without(eager, name):
    check(eager, name)


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_training_goes_on_without(compiled, name):
    check(compiled, name)


def test_where_nothing_is_gone_nothing_is_said(eager, compiled):
    for told in (eager[NOTHING], compiled[NOTHING]):
        assert "raised" not in told, told["raised"]
        assert told["said"] == []
        assert told["skipped"] == {}
        assert "torch.moved" not in told["header"]
        assert told["bits"] == eager["none"]["bits"] == compiled["none"]["bits"]
