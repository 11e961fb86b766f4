"""What the page shows of a run is what its rows say, added up and never sampled."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlib.reading import open_run
from anchorlib.record import Edges, Flag, Gap, Parent
from anchorlib.report.binning import BinCache
from anchorlib.report.gathering import gather
from anchorlib.report.noteworthy import line_histogram
from anchorlib.report.run_view import PageBudget
from anchorlib.store import Writer
from anchorlib.summary import Log2Histogram
from tests.cli.made import make_run, record
from tests.seeds import examples
from tests.writing import put

ADDED = ("records", "numel", "zero", "nan", "inf", "subnormal", "sum")

arrays = st.lists(
    st.sampled_from([0.0, -0.0, 1.0, -3.5, 2.0**-20, 1e-40, np.nan, np.inf, 6e4]),
    min_size=1,
    max_size=5,
).map(lambda values: np.array(values, np.float32))
records = st.lists(
    st.tuples(
        st.sampled_from(["fc1", "fc2"]),
        st.sampled_from(["value", "grad"]),
        st.integers(0, 6),
        st.sampled_from(["train", "eval"]),
        arrays,
    ),
    min_size=1,
    max_size=12,
)


def made(store, drawn, **changes):
    """A run of these records, in the order of their steps, as a recording would be."""
    drawn = sorted(drawn, key=lambda one: one[2])
    parts = [
        record(name, kind, raw, step=step, phase=phase, call=call)
        for call, (name, kind, step, phase, raw) in enumerate(drawn)
    ]
    make_run(store, parts, **changes)
    return open_run("run1", store)


@pytest.mark.slow
@settings(max_examples=examples(15))  # each writes a run
@given(records, st.integers(1, 30), st.integers(1, 30))
def test_figures_and_histograms_add_up_to_those_of_the_run(drawn, cells, bin_cells):
    with tempfile.TemporaryDirectory() as place:
        run = made(Path(place), drawn)
        view = gather(run, budget=PageBudget(cells=cells, bin_cells=bin_cells))
        for row, line in enumerate(view.lines):
            own = run.series(line.name, line.kind).where(phase=line.phase)
            for name in ("zero", "nan", "inf", "subnormal"):
                assert np.nansum(view.figures[name][row]) == own.columns[name].sum()
            assert np.nansum(view.figures["records"][row]) == len(own) == line.records
            squares = np.nansum(view.figures["l2"][row] ** 2)
            assert squares == pytest.approx(np.nansum(own.columns["l2"] ** 2))
            assert np.nansum(view.figures["sum"][row]) == pytest.approx(
                np.nansum(own.columns["sum"])
            )
            assert np.nanmax([*view.figures["max"][row], -9e9]) == np.nanmax(
                [*own.columns["max"], -9e9]
            )
            bins = line_histogram(view.bins, row)
            assert (bins.bins, bins.inf) == (own.histogram().bins, own.histogram().inf)
        assert sum(line.records for line in view.lines) == len(drawn)
        assert view.figures["records"].shape == (len(view.lines), len(view.columns))
        assert len(view.columns) == 1 or view.figures["records"].size <= cells + len(view.lines)


@pytest.mark.slow
@settings(max_examples=examples(15))  # each writes a run
@given(records)
def test_each_step_has_a_column_of_its_own_where_there_is_room(drawn):
    with tempfile.TemporaryDirectory() as place:
        run = made(Path(place), drawn)
        view = gather(run)
        assert view.width == view.bins.width == 1
        assert view.columns.tolist() == run.steps
        for row, line in enumerate(view.lines):
            own = run.series(line.name, line.kind).where(phase=line.phase)
            seen = view.columns[view.figures["records"][row] > 0]
            assert seen.tolist() == np.unique(own.columns["step"]).tolist()


def test_lines_stand_in_the_order_of_execution(tmp_path):
    order = [("fc1", "value"), ("fc2", "value"), ("fc2", "grad"), ("fc1", "grad"), ("w", "updated")]
    make_run(tmp_path, [record(*pair, step=step) for step in range(2) for pair in order])
    view = gather(open_run("run1", tmp_path))
    assert [(line.name, line.kind) for line in view.lines] == order
    assert [line.section for line in view.lines] == [*["forward"] * 2, *["backward"] * 2, "update"]


def test_ranks_and_passes_of_a_step_are_taken_together(tmp_path):
    for rank in range(2):
        parts = [record(raw=np.full(3, 2.0, np.float32), step=1, pass_index=p) for p in range(2)]
        make_run(tmp_path, [*parts], rank=rank)
    view = gather(open_run("run1", tmp_path))
    assert view.lines[0].ranks == (0, 1)
    assert view.figures["records"].tolist() == [[4.0]]
    assert view.figures["l2"][0, 0] == pytest.approx(np.sqrt(12 * 4.0))
    assert line_histogram(view.bins, 0).bins == {1: 12}


def test_a_run_that_grew_is_counted_from_where_it_was(tmp_path):
    writer = Writer.open(tmp_path, "run1", 0)
    put(writer, [record(step=0)])
    run, cache = open_run("run1", tmp_path), BinCache()
    gather(run, cache=cache)
    put(writer, [record(step=1, order=1, raw=np.full(4, 8.0, np.float32))])
    grown = gather(run, cache=cache).bins
    fresh = gather(open_run("run1", tmp_path)).bins
    for name in ("starts", "exponents", "counts"):
        assert getattr(grown, name).tolist() == getattr(fresh, name).tolist()
    assert len(grown.starts) == 3
    writer.close()


def test_the_first_that_is_not_finite_is_told_with_where(tmp_path):
    fine, bad = np.ones(4, np.float32), np.array([1, np.nan, np.inf, np.nan], np.float32)
    parts = [
        record("fc1", "value", fine, step=0),
        record("fc2", "value", fine, step=0),
        record("fc2", "grad", bad, step=1, pass_index=2, flags=Flag.STEP_SKIPPED),
        record("fc1", "grad", bad, step=1),
    ]
    make_run(tmp_path, parts)
    view = gather(open_run("run1", tmp_path))
    first = view.nonfinite
    assert view.lines[first.line].title == "fc2@grad"
    assert (first.step, first.pass_index, first.rank) == (1, 2, 0)
    assert (first.nan, first.inf, first.numel, first.before, first.skipped) == (2, 1, 4, 2, True)
    assert view.nonfinite_lines == 2


def test_gaps_are_counted_by_reason(tmp_path):
    where = [("fc2.bias", "queue full"), ("fc2.bias", "disk"), ("fc1", "queue full")]
    gaps = [Gap(name, "grad", "all", reason, 3, 0, 1) for name, reason in where]
    make_run(tmp_path, [record()], gaps=gaps)
    view = gather(open_run("run1", tmp_path))
    assert dict(view.gaps) == {"queue full": 6, "disk": 3}
    assert view.lines[0].gaps == 6


def test_parameters_are_known_by_their_kinds_and_by_what_was_computed_from_them(tmp_path):
    writer = Writer.open(tmp_path, "run1", 0)
    names = [("fc1.weight", "grad"), ("fc2.weight", "delta"), ("fc1", "grad")]
    put(writer, [record(*pair, order=order) for order, pair in enumerate(names)])
    writer.edges([Edges("fc1", "train", 0, 0, (4,), parents=(Parent("fc1.weight", call=None),))])
    writer.close()
    view = gather(open_run("run1", tmp_path))
    assert {line.name: line.parameter for line in view.lines} == {
        "fc1.weight": True,
        "fc2.weight": True,
        "fc1": False,
    }


def test_an_empty_run_has_a_view(tmp_path):
    Writer.open(tmp_path, "run1", 0).close()
    view = gather(open_run("run1", tmp_path))
    assert (view.steps, list(view.lines)) == (0, [])
    assert Log2Histogram() == Log2Histogram.from_pairs(view.bins.exponents, view.bins.counts)


def clipped_run(store, *, scale=1.0, passes=1, ranks=1):
    """Two parameters whose gradients have norms 3 and 4 before clipping to 1, times the step."""
    for rank in range(ranks):
        parts = []
        for step in range(1, 4):
            for name, size in (("fc1", 3.0), ("fc2", 4.0)):
                raw = np.array([size * step * scale, 0], np.float32)
                noted = {"scale": scale, "flags": Flag.SCALED if scale != 1 else Flag.NONE}
                parts += [
                    record(name, "pass_grad", raw, step=step, pass_index=number, **noted)
                    for number in range(passes)
                ]
                parts.append(record(name, "grad", raw / (5 * step * scale), step=step))
        make_run(store, parts, rank=rank)
    return gather(open_run("run1", store)).unclipped


@pytest.mark.parametrize("scale", [1.0, 65536.0])
def test_the_norm_of_gradients_before_clipping_is_that_of_backward(tmp_path, scale):
    found = clipped_run(tmp_path, scale=scale)
    assert (found.tensors, found.bad.any()) == (2, False)
    assert found.norms == pytest.approx([5.0, 10.0, 15.0])


@pytest.mark.parametrize("several", [{"passes": 2}, {"ranks": 2}])
def test_norms_that_do_not_add_up_are_not_told(tmp_path, several):
    assert clipped_run(tmp_path, **several) is None


def test_a_norm_before_clipping_that_is_not_finite_is_no_number(tmp_path):
    bad = np.array([np.inf, 1], np.float32)
    parts = [record("fc1", "pass_grad", raw, step=at) for at, raw in enumerate([bad, bad[1:]])]
    make_run(tmp_path, parts)
    found = gather(open_run("run1", tmp_path)).unclipped
    assert found.bad.tolist() == [True, False]
    assert (np.isnan(found.norms[0]), found.norms[1]) == (True, 1.0)
