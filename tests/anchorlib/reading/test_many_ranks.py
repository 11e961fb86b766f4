"""What readers keep in memory is bounded, for many ranks, runs and looks, and so are the looks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from weakref import ref

import pytest

from anchorlib.errors import RunNotFoundError
from anchorlib.reading import open_run
from anchorlib.store import RunReader, Writer
from anchorlib.store.read.column_memory import COLUMN_MEMORY, ColumnMemory
from anchorlib.store.read.usable_memory import memory_here
from tests.anchorlib.reading.runs import make_run, told, training
from tests.cli.made import anchor
from tests.writing import put

RANKS = 5
COMMANDS = (
    ("names", "run1"),
    ("runs",),
    ("hist", "run1", "-t", "*"),
    ("stats", "run1", "-t", "*"),
    ("stats", "run1", "-t", "fc1", "--rank", "2", "--step", "1:"),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("store"), ranks=RANKS)


@pytest.mark.slow
def test_what_is_kept_of_the_ranks_is_bounded_and_the_answers_are_the_same(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = told(open_run("run1", store))
    answers = [anchor(*words, "--store", store, "--json").out for words in COMMANDS]
    monkeypatch.setattr(COLUMN_MEMORY, "most", 1)
    run = open_run("run1", store)
    assert told(run) == here
    reader = RunReader(run._reader.location, "run1")
    reader.refresh()
    for rank in reader.ranks:
        for name in ("step", "order"):
            reader.rank(rank).column(name)
        assert COLUMN_MEMORY.taken == 2 * reader.rank(rank).column("step").nbytes
    assert [anchor(*words, "--store", store, "--json").out for words in COMMANDS] == answers


def test_all_runs_of_a_process_share_what_may_be_kept(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [open_run("run1", store) for _ in range(3)]
    monkeypatch.setattr(COLUMN_MEMORY, "most", 1)
    for run in runs:
        reader, _ = run.rows(0)
        assert COLUMN_MEMORY.taken == sum(reader.column(name).nbytes for name in reader._columns)


def test_what_a_live_run_is_counted_with_is_what_it_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ColumnMemory(1 << 30)
    monkeypatch.setattr("anchorlib.store.read.run.COLUMN_MEMORY", own)
    with Writer.open(tmp_path, "run1", 0) as writer:
        run = open_run("run1", tmp_path)
        for step in range(30):
            put(writer, training(step))
            run.steps, run.tensors()
    reader, rows = run.rows(0)
    columns = sum(reader.column(name).nbytes for name in reader._columns)
    assert own.taken == columns + rows.nbytes
    del reader, run
    assert own.taken == 0


def test_a_rank_that_was_overwritten_is_kept_no_longer(tmp_path: Path) -> None:
    run = open_run("run1", make_run(tmp_path))
    readers = []
    for _ in range(4):
        run.tensors()
        readers.append(ref(run.rows(0)[0]))
        make_run(tmp_path, overwrite=True)
        run.tensors()
    assert [reader() for reader in readers] == [None] * 4


@pytest.mark.parametrize("is_read", [True, False])
def test_a_rank_that_goes_during_an_iteration_is_given_out_or_told_to_be_gone(
    tmp_path: Path, *, is_read: bool
) -> None:
    run = open_run("run1", make_run(tmp_path, ranks=2))
    if is_read:
        run.tensors()
    found = run.each_series()
    first = next(found)
    shutil.rmtree(tmp_path / "run1.zarr" / "rank1")
    run.refresh()
    if is_read:
        assert [first.rank, *dict.fromkeys(one.rank for one in found)] == [0, 0, 1]
    else:
        with pytest.raises(RunNotFoundError):
            list(found)


V1 = ("5:cpu:/\n4:memory:/pod/one\n0::/\n", "memory/pod/memory.limit_in_bytes")
V2 = ("0::/pod/one\n", "pod/memory.max")


@pytest.mark.parametrize(
    ("told", "where", "limit", "here"),
    [
        (*V1, "4096\n", 4096),
        (*V2, "8192\n", 8192),
        (V2[0], "memory.max", "512\n", 512),  # as a container sees its own group
        (*V2, "max\n", None),
        (*V1, f"{1 << 62}\n", None),
    ],
)
def test_a_container_has_the_memory_that_it_is_allowed(
    tmp_path: Path, told: str, where: str, limit: str, here: int | None
) -> None:
    (tmp_path / "cgroup").write_text(told)
    (tmp_path / where).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / where).write_text(limit)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory_here(tmp_path / "cgroup", tmp_path) == (here or machine)
    assert memory_here(tmp_path / "none", tmp_path) == machine


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_question_looks_at_a_run_as_often_for_many_ranks_as_for_few(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    looks = 0
    refresh = RunReader.refresh

    def counted(self: RunReader) -> None:
        nonlocal looks
        looks += 1
        refresh(self)

    monkeypatch.setattr(RunReader, "refresh", counted)
    counts = []
    for place in (store, make_run(tmp_path, ranks=3)):
        looks = 0
        assert anchor(*words, "--store", place, "--json").code == 0
        counts.append(looks)
    assert counts[0] == counts[1]
