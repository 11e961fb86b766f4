"""The bench of what observing costs measures what it says, and names every target."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import anchorlib
from benchmarks.figures import Figure
from benchmarks.grids import grids
from benchmarks.observing.hooks import HandSaved, hook_emptily
from benchmarks.observing.models import TRAININGS, tiny, unet
from benchmarks.observing.steps import ROWS, step_weight
from benchmarks.observing.targets import BESIDE_EMPTY, BESIDE_SAVED, PLAIN, TARGETS
from benchmarks.observing.turns import children_cpu
from tests.warm import warm_python

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_bench_of_observing_prints_figures_beside_their_targets(tmp_path):
    options = ["--rows", "tiny", "files", "--rounds", "1", "--store", tmp_path / "kept"]
    done = subprocess.run(
        [warm_python(), "-m", "benchmarks", "observing", *map(str, options)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for told in (PLAIN, BESIDE_EMPTY, "tiny, default selection: 146 records", "<= 1.9 x: "):
        assert told in done.stdout
    assert 'tiny, "*": 339 records' in done.stdout
    assert "unet, default selection, 5 steps" in done.stdout
    assert list((tmp_path / "kept").iterdir()) == []


def test_every_target_of_a_step_belongs_to_a_row_of_the_bench():
    rows = {row.name for row in ROWS}
    headings = (PLAIN, BESIDE_EMPTY, BESIDE_SAVED)
    assert {row for heading, row, _ in TARGETS if heading in headings} <= rows
    assert {row.training for row in ROWS} == set(TRAININGS)


@pytest.mark.slow
def test_hooks_by_hand_save_as_many_tensors_as_the_default_selection_records(tmp_path):
    watched, by_hand = unet(), unet()
    saved = HandSaved(by_hand, tmp_path / "saved")
    by_hand.step()
    with anchorlib.start("run", store=tmp_path) as session:
        session.watch(watched.model, optimizer=watched.optimizer)
        assert step_weight(session, watched).startswith(f"{saved.saved} records, ")
    assert len(list((tmp_path / "saved").iterdir())) == saved.saved


def test_empty_hooks_stand_where_watch_has_its_own(tmp_path):
    for tensors in (None, "*"):
        watched, empty = tiny(), tiny()
        hook_emptily(empty, everything=tensors == "*")
        with anchorlib.start("run", store=tmp_path, overwrite=True) as session:
            session.watch(watched.model, tensors=tensors, optimizer=watched.optimizer)
            assert hooked(watched) == hooked(empty)


def hooked(training):
    """How many hooks each module and parameter has, and whether the optimizer has one."""
    modules = [
        (len(module._forward_pre_hooks), len(module._forward_hooks))
        for module in training.model.modules()
    ]
    parameters = [len(one._backward_hooks or ()) for one in training.model.parameters()]
    return modules, parameters, len(training.optimizer._optimizer_step_pre_hooks)


@pytest.mark.slow
def test_the_cpu_of_a_child_counts_while_it_lives_and_afterwards():
    work = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True); input()"
    before = children_cpu()
    command = [sys.executable, "-c", work]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert children_cpu() - before >= 0.2
        child.communicate(b"\n")
    assert children_cpu() - before >= 0.2


def test_a_grid_tells_the_smallest_the_median_and_whether_the_target_is_met():
    told = grids(
        Figure(row, "x", median, low, 9, 1.5, why="it is so", heading="ratio", column=column)
        for row, column, low, median in (
            ("a: much", "wall", 1, 1.25),
            ("a: much", "CPU", 1.25, 2),
            ("b", "CPU", 2, 3),
        )
    )
    assert told.splitlines() == [
        "| ratio | wall | CPU |",
        "|---|---|---|",
        "| a: much | 1 / 1.25 x (<= 1.5 x: met) | 1.25 / 2 x (<= 1.5 x: **met at best**) |",
        "| b |  | 2 / 3 x (<= 1.5 x: **missed**) |",
        "",
        "a, CPU: it is so.",
        "",
        "b, CPU: it is so.",
    ]
