"""What a step weighs and what was counted is seen: in the log of a program, or on stderr."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys

import pytest
import torch

import anchorlib
from tests.warm import warm_python

WEIGHT = "anchorlib: a step of run run1 weighs 40 B in 4 records (train) on rank "
COUNTED = "anchorlib: run run1, rank "


def record(store, **options):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with anchorlib.start("run1", store=store, recorder="thread", **options) as session:
        session.watch(model, optimizer=optimizer)
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()


def are_told(text, rank=0):
    weight, counted = text.splitlines()
    assert weight == f"{WEIGHT}{rank}"
    assert counted.startswith(
        f"{COUNTED}{rank}: 3 steps of 1 pass, ended by SGD; 12 records, 120 B"
    )
    return True


@pytest.fixture
def store(tmp_path):
    return tmp_path / "anchors"


@pytest.fixture
def ours(monkeypatch):
    """The logger `anchorlib`, restored at the end."""
    logger = logging.getLogger("anchorlib")
    for name in ("level", "propagate", "handlers"):
        monkeypatch.setattr(logger, name, getattr(logger, name))
    monkeypatch.setattr(logger, "handlers", [])
    yield logger
    logger.setLevel(logging.NOTSET)  # forgets which levels it has found enabled


@pytest.mark.slow
def test_a_program_as_it_is_shows_the_lines_of_its_session_on_stderr(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.anchorlib.capture.recording.test_telling import record\n"
        "record(sys.argv[2])"
    )
    done = subprocess.run(
        [warm_python(), "-W", "error", "-c", code, ".", str(tmp_path)],
        env={k: v for k, v in os.environ.items() if not k.startswith("ANCHOR_")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert are_told(done.stderr)


def test_a_log_of_warnings_alone_takes_no_line_from_stderr(store, capsys, monkeypatch):
    root = logging.getLogger()
    warns = logging.StreamHandler(io.StringIO())
    monkeypatch.setattr(root, "handlers", [warns])
    record(store)
    assert are_told(capsys.readouterr().err)
    warns.setLevel(logging.WARNING)
    monkeypatch.setattr(root, "level", logging.DEBUG)
    logging.getLogger("anchorlib").setLevel(logging.NOTSET)  # forgets what it has found enabled
    record(store, overwrite=True)
    assert are_told(capsys.readouterr().err)


def test_a_log_that_takes_them_has_them_and_stderr_has_not(store, capsys, caplog):
    caplog.set_level(logging.INFO)
    record(store)
    assert are_told("\n".join(caplog.messages))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "silence",
    [
        lambda logger: logger.setLevel(logging.WARNING),
        lambda logger: logger.addHandler(logging.NullHandler()),
        lambda logger: setattr(logger, "propagate", False),
        lambda _: logging.disable(logging.INFO),
    ],
    ids=["level", "handler", "propagate", "disable"],
)
def test_a_program_that_wants_no_such_lines_has_none(store, capsys, ours, silence):
    try:
        silence(ours)
        record(store)
    finally:
        logging.disable(logging.NOTSET)
    assert capsys.readouterr().err == ""


def test_the_first_rank_that_records_speaks_for_all(store, capsys):
    record(store, rank=1)
    record(store, rank=3, ranks=[2, 3])
    assert capsys.readouterr().err == ""
    record(store, rank=2, ranks=[2, 3])
    assert are_told(capsys.readouterr().err, rank=2)


def test_a_program_without_a_stderr_goes_on(store, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    record(store)
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    record(store, overwrite=True)
    assert len(anchorlib.open_run("run1", store)["output@value"]) == 3


def test_a_scope_that_leaves_everything_out_is_one_line(store, caplog, capsys):
    record(store, steps=7, tensors=["never"])
    (line,) = caplog.messages
    assert line.startswith(f"{COUNTED}0: 3 steps")
    assert "; 0 records, 0 B, in " in line
    assert line.endswith(": nothing was observed in the phases and steps that were asked for")
    assert capsys.readouterr().err == ""  # it is a warning, which the log has
