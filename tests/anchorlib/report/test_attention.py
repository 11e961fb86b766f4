"""A planted fault is what the page says first; where there is none it says so."""

from __future__ import annotations

import numpy as np
import pytest

from anchorlib.reading import open_run
from anchorlib.record import Flag, Gap
from anchorlib.report.gathering import gather
from anchorlib.report.noteworthy import attention
from tests.cli.made import make_run, record

FINE = np.array([1.0, -0.5, 0.25], np.float32)
ZEROS = np.zeros(3, np.float32)


def findings(store, fault=lambda step: None, steps=8, gaps=()):
    """What is said of a run of `fc1@grad` and `fc2@grad`, of which `fault` replaces the latter."""
    parts = []
    for step in range(steps):
        parts.append(record("fc1", "grad", FINE, step=step))
        planted = fault(step)
        parts.append(planted or record("fc2", "grad", FINE, step=step))
    make_run(store, parts, gaps=gaps)
    return attention(gather(open_run("run1", store)))


def test_where_nothing_stands_out_it_says_so(tmp_path):
    (only,) = findings(tmp_path)
    assert only.level == "info"
    assert "Nothing stands out: 16 records of 2 tensors" in only.text


def test_a_nan_is_said_first_with_its_place(tmp_path):
    bad = np.array([1.0, np.nan, np.inf], np.float32)
    found = findings(tmp_path, lambda s: record("fc2", "grad", bad, step=s) if s > 4 else None)
    assert found[0].level == "bad"
    assert "step 5, pass 0, in fc2@grad: 1 NaN and 1 infinity among 3 elements" in found[0].text
    assert "the 11 records before are finite" in found[0].text
    assert (found[0].line, found[0].column) == (1, 5)


def test_a_nan_in_a_step_that_was_skipped_is_a_warning(tmp_path):
    bad = np.array([np.nan], np.float32)
    found = findings(
        tmp_path,
        lambda s: record("fc2", "grad", bad, step=s, flags=Flag.STEP_SKIPPED) if s == 3 else None,
    )
    assert found[0].level == "warn"
    assert "GradScaler skipped that step" in found[0].text


@pytest.mark.parametrize("kind", ["value", "grad", "pass_grad"])
def test_a_step_is_skipped_though_what_overflowed_first_could_not_know_it(tmp_path, kind):
    bad = np.array([np.inf, 1.0], np.float32)
    parts = [record("fc1", "grad", FINE, step=0), record("h", kind, bad, step=1)]
    make_run(tmp_path, [*parts, record("w", "grad", bad, step=1, flags=Flag.STEP_SKIPPED)])
    first = attention(gather(open_run("run1", tmp_path)))[0]
    assert first.level == "warn"
    assert first.text.startswith(f"Not finite first at step 1, pass 0, in h@{kind}: 1 infinity")
    assert first.text.endswith("1 more tensor became so. GradScaler skipped that step.")


def test_infinities_among_the_gradients_are_overflow(tmp_path):
    bad = np.array([np.inf, np.inf, -np.inf], np.float32)
    found = findings(tmp_path, lambda s: record("fc2", "grad", bad, step=s) if s > 2 else None)
    (told,) = [one for one in found if "Stored as fp16" in one.text]
    assert (
        "31.2 % of the gradients' elements would overflow, most in fc2@grad (62.5 %)" in told.text
    )


def test_a_layer_whose_gradients_died_is_named(tmp_path):
    found = findings(tmp_path, lambda s: record("fc2", "grad", ZEROS, step=s) if s > 3 else None)
    assert [(one.level, one.line) for one in found] == [("warn", 1)]
    assert found[0].text.startswith("Dead: fc2@grad is all zero through the last half")


def test_a_layer_that_was_zero_only_at_first_is_not_dead(tmp_path):
    found = findings(tmp_path, lambda s: record("fc2", "grad", ZEROS, step=s) if s < 4 else None)
    assert [one.level for one in found] == ["info"]


def test_a_norm_that_explodes_is_named_with_its_step(tmp_path):
    found = findings(
        tmp_path, lambda s: record("fc2", "grad", FINE * 2000, step=s) if s == 6 else None
    )
    assert found[0].level == "bad"
    assert "the norm of fc2@grad is 2,000 times its median at step 6" in found[0].text


@pytest.mark.parametrize(
    ("factor", "text"),
    [
        (2.0**-30, "Stored as fp16, 50 % of the gradients' elements would become zero"),
        (2.0**20, "Stored as fp16, 50 % of the gradients' elements would overflow"),
    ],
)
def test_gradients_beyond_the_range_of_fp16_are_a_share(tmp_path, factor, text):
    found = findings(tmp_path, lambda s: record("fc2", "grad", FINE * factor, step=s))
    told = [one for one in found if text in one.text]
    assert [one.level for one in told] == ["warn"]
    assert "most in fc2@grad (100 %)" in told[0].text


def test_gaps_are_said_with_their_reasons(tmp_path):
    gaps = [Gap("fc2", "grad", "all", "queue full", 3, 0, 1)]
    found = findings(tmp_path, gaps=gaps)
    assert [one.level for one in found] == ["warn"]
    assert "3 observations were not recorded, or not with values (queue full: 3)" in found[0].text


def test_a_rank_that_leaves_its_peers_is_named_with_its_first_step(tmp_path):
    for rank in range(4):
        odd = rank == 2
        parts = [record("fc1", "grad", FINE + (odd and s > 1), step=s) for s in range(4)]
        make_run(tmp_path, parts, rank=rank)
    first = attention(gather(open_run("run1", tmp_path)))[0]
    assert first.level == "bad"
    assert first.text.startswith("Rank 2 first at step 2 in fc1@grad: its bits are not those that")
