"""A run says what it holds, and gives exactly the series that was asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import anchorlib
from anchorlib import Sum
from anchorlib.errors import (
    AmbiguousTensorError,
    ModeError,
    OptionError,
    RunNotFoundError,
    UnknownTensorError,
)
from anchorlib.reading import Run, open_run
from anchorlib.record import Gap
from anchorlib.store import LocalLocation, RunReader, Writer
from tests.anchorlib.reading.runs import STEPS, make_run, training
from tests.anchorlib.store.records import floats, record, written
from tests.writing import put


def test_tensors_come_in_order_of_execution_with_all_that_is_known(tmp_path: Path) -> None:
    run = open_run("run1", store=make_run(tmp_path))
    names = [(info.name, info.kind) for info in run.tensors()]
    assert names == [
        ("fc1", "value"),
        ("fc2", "value"),
        ("loss", "value"),
        ("fc2", "grad"),
        ("fc1.weight", "grad"),
        ("fc2.bias", "grad"),
    ]
    info = run.tensors()[0]
    assert (info.mode, info.dtype, info.shape, info.ranks) == ("all", "float32", (2, 3), (0,))
    assert (info.records, info.first_step, info.last_step) == (2 * STEPS, 0, STEPS - 1)
    assert info.bytes == info.records * 24


def test_selectors_narrow_the_listing_and_keep_its_order(tmp_path: Path) -> None:
    run = open_run("run1", store=make_run(tmp_path))
    chosen = [(info.name, info.kind) for info in run.tensors("fc2*@grad", "fc1")]
    assert chosen == [("fc1", "value"), ("fc2", "grad"), ("fc2.bias", "grad")]
    with pytest.raises(UnknownTensorError, match=r"run1.*did you mean 'fc2.bias'"):
        run.tensors("fc2.bais")


def test_listings_are_merged_over_ranks(tmp_path: Path) -> None:
    run = open_run("run1", store=make_run(tmp_path, ranks=2))
    info = run.tensors("fc2.bias")[0]
    assert (info.ranks, info.records) == ((0, 1), 2 * STEPS)
    assert run.ranks == [0, 1]


def test_shapes_that_differ_are_unknown_where_they_differ(tmp_path: Path) -> None:
    matrices = [record("a", n, floats(*range(6)).reshape(n + 1, 6 // (n + 1))) for n in range(2)]
    batches = [record("b", n, floats(*range(3 * (n + 1))).reshape(n + 1, 3)) for n in range(12)]
    ranks = [record("c", 0, floats(1)), record("c", 1, floats(1).reshape(1, 1))]
    written(tmp_path, [*matrices, *batches, *ranks])
    shapes = {info.name: info.shape for info in open_run("run1", tmp_path).tensors()}
    assert shapes == {"a": (None, None), "b": (None, 3), "c": None}


def test_a_selector_gives_the_one_series_it_names(tmp_path: Path) -> None:
    run = open_run("run1", store=make_run(tmp_path))
    series = run["fc2.bias@grad"]
    assert (series.name, series.kind, series.mode, series.rank) == ("fc2.bias", "grad", "all", 0)
    assert run["fc2.bias"].kind == "grad"
    assert run["FinalReducedGradient___fc2.bias"].name == "fc2.bias"


def test_a_tuple_is_no_selector(tmp_path: Path) -> None:
    run = open_run("run1", store=make_run(tmp_path))
    with pytest.raises(TypeError, match=r"'fc1.weight@grad', not \('fc2', 'grad'\)"):
        run["fc2", "grad"]  # type: ignore[index]


def test_a_selector_that_names_several_tensors_says_which(tmp_path: Path) -> None:
    run = open_run("run1", store=make_run(tmp_path))
    with pytest.raises(AmbiguousTensorError, match="'fc2@value', 'fc2@grad'"):
        run["fc2"]
    with pytest.raises(AmbiguousTensorError, match=r"names 6 tensors .* and 1 more"):
        run["*"]
    with pytest.raises(UnknownTensorError, match="did you mean"):
        run["fc3"]


def test_several_ranks_or_modes_need_to_be_told_apart(tmp_path: Path) -> None:
    make_run(tmp_path, ranks=2)
    run = open_run("run1", tmp_path)
    with pytest.raises(AmbiguousTensorError, match=r"rank=0.*rank=1"):
        run["fc2.bias"]
    assert run.series("fc2.bias", "grad", rank=1).values()[1].tolist() == [2, -2, 0, 1]
    with pytest.raises(OptionError, match="rank 7"):
        run.series("fc2.bias", "grad", rank=7)
    with Writer.open(tmp_path, "modes", 0) as writer:
        for mode in ("all", "sum", "every_n:2"):
            put(writer, [record("x", 0, floats(1), mode=mode)])
    run = open_run("modes", tmp_path)
    with pytest.raises(AmbiguousTensorError, match=r"mode='all'.*mode='sum'"):
        run["x"]
    for mode, text in ((Sum, "sum"), (Sum(1), "sum"), ("every_n:2", "every_n:2")):
        assert run.series("x", "grad", mode=mode).mode == text
    with pytest.raises(UnknownTensorError, match="was not recorded so"):
        run.series("x", "grad", mode="final")
    with pytest.raises(ModeError):
        run.series("x", "grad", mode="nonsense")
    with pytest.raises(UnknownTensorError, match="kinds of 'x' are grad"):
        run.series("x", "value")


def test_the_rest_of_what_a_run_knows(tmp_path: Path) -> None:
    make_run(tmp_path, ranks=2)
    run = open_run(tmp_path / "run1.zarr")
    assert (run.name, run.state, run.steps) == ("run1", "closed", [0, 1, 2])
    assert run.header(1) == {"rank": 1}
    assert run.header() == {"rank": 0}
    assert run.bytes == 2 * sum(one.nbytes for step in range(STEPS) for one in training(step))
    assert repr(run).startswith("Run('run1', closed: ")
    assert run.started_ns > 1_600_000_000_000_000_000


def test_gaps_are_added_over_ranks_and_attempts(tmp_path: Path) -> None:
    for rank in (0, 0, 1):
        with Writer.open(tmp_path, "run1", rank, resume=True) as writer:
            put(writer, [record("x", 0, floats(1))])
            writer.gap([Gap("x", "grad", "all", "queue", 2, rank, rank + 5)])
    run = open_run("run1", tmp_path)
    assert run.gaps() == [Gap("x", "grad", "all", "queue", 6, 0, 6)]
    assert run.gaps(rank=1) == [Gap("x", "grad", "all", "queue", 2, 1, 6)]
    assert run.tensors()[0].gaps == 6


def test_an_open_run_is_read_while_it_grows(tmp_path: Path) -> None:
    with Writer.open(tmp_path, "run1", 0) as writer:
        run = open_run("run1", tmp_path)
        assert (run.tensors(), run.steps, run.state) == ([], [], "open")
        for step in range(3):
            put(writer, [record("x", step, floats(step)), record(f"new{step}", step, floats(1))])
            assert len(run["x"]) == step + 1
            assert len(run.tensors()) == step + 2
        series = run["x"]
        with Writer.open(tmp_path, "run1", 1) as other:
            put(other, [record("y", 0, floats(1))])
            assert run.ranks == [0, 1]
        # A series is what it was when it was asked for.
        put(writer, [record("x", 9, floats(9))])
        assert len(series) == 3
        assert series.values().tolist() == [[0], [1], [2]]
        assert run.live is True
    assert (run.state, run.live) == ("closed", False)


def test_a_rank_that_began_later_is_found_by_every_question(tmp_path: Path) -> None:
    questions = [
        lambda run: run.header(1) == {"rank": 1},
        lambda run: run.gaps(1) == [],
        lambda run: run.edges(1) == [],
        lambda run: run.ops(rank=1) == [],
        lambda run: run.op_gaps(1) == [],
        lambda run: len(run.rows(1)[1]) == 1,
        lambda run: len(run.series("y", "grad", rank=1)) == 1,
        lambda run: len([*run.each_series(1)]) == 1,
    ]
    with Writer.open(tmp_path, "run1", 0):
        runs = [open_run("run1", tmp_path) for _ in questions]
        with Writer.open(tmp_path, "run1", 1, header={"rank": 1}) as other:
            put(other, [record("y", 0, floats(1))])
        assert all(answers(run) for answers, run in zip(questions, runs, strict=True))


def test_the_header_is_that_of_the_process_that_resumed_meanwhile(tmp_path: Path) -> None:
    Writer.open(tmp_path, "run1", 0, header={"host": "one"}).abandon()
    run = open_run("run1", tmp_path)
    with Writer.open(tmp_path, "run1", 0, resume=True, header={"host": "two"}):
        assert run.header() == {"host": "two"}


def test_a_run_without_ranks_knows_nothing(tmp_path: Path) -> None:
    run = Run(RunReader(LocalLocation(tmp_path / "run1.zarr"), "run1"))
    assert (run.ranks, run.header(), run.edges(), run.gaps(), run.ops()) == ([], {}, [], [], [])
    with pytest.raises(OptionError, match="rank 0 recorded nothing in run1"):
        run.header(0)


def test_a_run_whose_writer_died_is_open_and_not_live(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, "run1", 0)
    put(writer, [record("x", 0, floats(1))])
    writer.abandon()
    run = open_run("run1", tmp_path)
    assert (run.state, run.live, len(run["x"])) == ("open", False, 1)


def test_a_run_that_is_overwritten_is_read_anew(tmp_path: Path) -> None:
    written(tmp_path, [record("x", step, floats(step)) for step in range(5)])
    run = open_run("run1", tmp_path)
    old = run["x"]
    assert len(old.columns["step"]) == 5
    with Writer.open(tmp_path, "run1", 0, overwrite=True) as writer:
        put(writer, [record("y", 0, floats(7))])
    assert [info.name for info in run.tensors()] == ["y"]
    assert run["y"].values().tolist() == [[7.0]]


def test_a_run_that_is_not_there_says_what_may_have_been_meant(tmp_path: Path) -> None:
    make_run(tmp_path)
    with pytest.raises(RunNotFoundError, match="did you mean 'run1'"):
        open_run("run2", store=tmp_path)


def test_many_tensors_are_listed_by_their_catalogue_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, [record(f"layer{n}", 0, floats(n)) for n in range(200)])
    run = open_run("run1", tmp_path)
    keys: list[str] = []
    real = LocalLocation.get

    def get(self: LocalLocation, key: str, *where: int) -> bytes | None:
        keys.append(key)
        return real(self, key, *where)

    monkeypatch.setattr(LocalLocation, "get", get)
    assert len(run.tensors()) == 200
    assert not [key for key in keys if "forms/" in key]
    assert 0 < len(keys) < 60


@pytest.mark.slow
def test_reading_imports_no_torch(tmp_path: Path) -> None:
    make_run(tmp_path)
    code = (
        "import sys, anchorlib; run = anchorlib.open_run('run1', sys.argv[1]);"
        "run['fc2.bias'].values(); run.histogram('fc2.bias'); run.tensors('*');"
        "assert not {'torch', 'grpc', 'zarr'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_the_package_opens_runs(tmp_path: Path) -> None:
    make_run(tmp_path)
    assert isinstance(anchorlib.open_run("run1", store=tmp_path), anchorlib.Run)


def test_elements_that_two_modes_recorded_are_never_counted_twice(tmp_path):
    import torch

    import anchorlib

    with anchorlib.start("run1", store=tmp_path):
        for _ in range(3):
            anchorlib.anchor(torch.ones(4), "x", [anchorlib.All, anchorlib.Sum("run")])
    run = anchorlib.open_run("run1", tmp_path)
    with pytest.raises(anchorlib.AmbiguousTensorError, match="'all', 'sum:window=run'"):
        run.histogram("x@value")
    assert run.histogram("x@value", mode=anchorlib.All).bins == {0: 12}
    assert run.histogram("x@value", mode="sum:window=run").bins == {1: 4}
