"""A recorder process that sends to a collector: it owns spool and gRPC, and its trainer neither."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch

import anchorlib
from anchor_server import serve
from anchorlib.errors import OptionError
from anchorlib.recorder import default_place
from anchorlib.spool import spools_here
from tests.recording import trouble
from tests.waiting import until
from tests.warm import warm_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(default_place() != "process", reason="this system has no recorder process"),
]


@pytest.fixture
def spools(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHOR_SPOOL", str(tmp_path / "spools"))
    return tmp_path / "spools"


@pytest.fixture
def collector(tmp_path, spools):
    with serve(tmp_path / "there", bind="127.0.0.1:0") as found:
        yield found


def values(store):
    return anchorlib.open_run("run1", store)["x"].values()[:, 0].tolist()


TRAINER = """
import os, signal, sys
import torch
import anchorlib

session = anchorlib.start("run1", store=sys.argv[1], recorder="process", on_full="block")
for n in range(int(sys.argv[2])):
    anchorlib.anchor(torch.full((4,), float(n)), "x", grad=False)
print(any(name == "grpc" or name.startswith("google.protobuf") for name in sys.modules))
sys.stdout.flush()
{end}
"""


def trained(address, count, end, python=sys.executable):
    """A trainer that ends so; what it printed."""
    code = TRAINER.format(end=end)
    return subprocess.run(
        [python, "-c", code, address, str(count)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_trainer_loads_neither_grpc_nor_protobuf(collector, tmp_path, spools):
    done = trained(f"grpc://{collector.address}", 100, "session.close()")
    assert (done.stdout, trouble(done.stderr), done.returncode) == ("False\n", "", 0)
    assert values(tmp_path / "there") == [float(n) for n in range(100)]
    assert list(spools_here(spools)) == []


def test_what_a_dead_trainer_anchored_reaches_its_collector(collector, tmp_path, spools):
    death = "os.kill(os.getpid(), signal.SIGKILL)"
    trained(f"grpc://{collector.address}", 3000, death, warm_python())
    until(lambda: not any(one.live for one in spools_here(spools)) and not list(spools.iterdir()))
    assert values(tmp_path / "there") == [float(n) for n in range(3000)]


@pytest.mark.parametrize("deaths", [2, 3])  # behind the third a thread goes on
def test_a_killed_recorder_costs_nothing_and_doubles_nothing(collector, tmp_path, deaths, spools):
    address = f"grpc://{collector.address}"
    with anchorlib.start("run1", store=address, recorder="process", on_full="block") as session:
        worker = session._queue._worker
        for n in range(500 * (deaths + 1)):
            anchorlib.anchor(torch.full((4,), float(n)), "x", grad=False)
            if n % 500 == 499 and n // 500 < deaths and worker._instead is None:
                killed = worker._child.pid
                os.kill(killed, signal.SIGKILL)
                until(lambda dead=killed: worker._instead or worker._child.pid != dead)
    assert values(tmp_path / "there") == [float(n) for n in range(500 * (deaths + 1))]
    assert session.counters.dropped == 0
    assert list(spools_here(spools)) == []


def test_a_collector_that_is_away_leaves_the_spool_and_the_command_that_delivers_it(
    tmp_path, spools, caplog
):
    with serve(tmp_path, bind="127.0.0.1:0") as gone:
        address = f"grpc://{gone.address}"
    with anchorlib.start("run1", store=address, recorder="process") as session:
        anchorlib.anchor(torch.ones(4), "x", grad=False)
        session.close(timeout=0.5)
    (left,) = spools_here(spools)
    assert (left.run, left.live) == ("run1", False)
    assert f"anchor push {left.path}" in caplog.text


@pytest.mark.parametrize("address", ["grpc://", "http://a:1", "grpc://a:b"])
def test_an_address_that_is_none_is_refused_at_start(address, spools):
    with pytest.raises(OptionError):
        anchorlib.start("run1", store=address, recorder="process")
