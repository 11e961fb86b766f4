"""Every example that a command's help shows runs, on runs of the names it uses."""

from __future__ import annotations

import shlex

import numpy as np
import pytest
import typer.main

from anchor_cli.main import app
from anchor_server import Collector
from anchorlib.summary import SCANS
from tests.cli.made import BIAS, anchor, make_run, record

COLLECTOR = "127.0.0.1:50051"
ELSEWHERE = {
    "serve": "it collects until it is stopped: cli/test_serve.py",
    "ui": "it serves until it is stopped: page/test_served.py",
    "graft": "it runs a training: anchorlib/capture/eager/test_grafting.py",
    "noise": "it runs a training: cli/test_noise.py",
    "run": "it runs a training: anchorlib/launch/test_run.py",
    "ops": "it takes a run that was traced: cli/test_ops.py",
    "graph": "it takes runs that were traced: cli/test_graph.py",
    "import": "it takes folders of dumps: cli/test_import.py",
    "status": "it takes runs that are being written: cli/test_status.py",
    "rm": "it removes what other examples take: cli/test_retention.py",
    "mv": "it renames what other examples take: cli/test_retention.py",
    "gc": "it removes what other examples take: cli/test_retention.py",
    "archive": "it wants an object store: cli/test_archive.py",
    "repair": "it takes damaged runs: cli/test_repair.py",
    "push": "it takes a spool, and writes to /archive: anchorlib/spool/test_delivery.py",
}
"""Commands whose examples need more than stored runs, and where they run."""

COMMANDS = typer.main.get_command(app).commands
EXAMPLES = [
    line.strip()
    for name, command in COMMANDS.items()
    if name not in ELSEWHERE
    for line in (command.epilog or "").splitlines()
    if line.strip().startswith("anchor ")
]
RUNS = ["run1", "float64", "eager", "compiled", "noise0", "noise1", "noise2"]
NOISE = [f"eager-noise{number}" for number in (1, 2, 3)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory as the examples know it: runs in `anchors`, a.zarr, and others at a collector."""
    folder = tmp_path_factory.mktemp("examples")
    records = [
        one
        for step in range(2)
        for one in (
            record("fc2.bias", "grad", BIAS, step=step),
            record("fc2.weight", "grad", BIAS.reshape(2, 2), step=step),
            record("loss", "value", np.float32(1).reshape(()), step=step),
        )
    ]
    for name in (*RUNS, *NOISE):
        make_run(folder / "anchors", records, name)
    make_run(folder, records, "a")
    with Collector(folder / "far", bind="127.0.0.1:0") as collector:
        for name in ("b", *RUNS):
            make_run(folder / "far", records, name)
        yield folder, collector.address


def test_no_command_is_forgotten():
    assert set(ELSEWHERE) < set(COMMANDS)
    named = {shlex.split(example)[1] for example in EXAMPLES}
    assert named == set(COMMANDS) - set(ELSEWHERE)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(place, example, monkeypatch):
    folder, address = place
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ANCHOR_STORE", "anchors")
    monkeypatch.setattr(SCANS, "load", lambda: None)  # doctor has them compiled, for seconds
    line = example.partition(" | ")[0].replace(COLLECTOR, address)
    done = anchor(*shlex.split(line)[1:])
    assert done.code == 0, done.err
    noticed = [one for one in done.err.splitlines() if not one.startswith("anchor: wrote ")]
    assert noticed == []
