"""Archived runs of many ranks are compared by their digests first; the answer is that of all ranks.

The oracle is the same archive without its digests, where every rank is opened.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import anchorlib
from anchorlib.archive import archive_run, shelf_at
from anchorlib.archive.index import put_index
from anchorlib.diagnosis import Comparison, compare_digests
from anchorlib.reading import open_run
from anchorlib.record import Record
from anchorlib.store import RUN_INDEX, RankReader, RunReader, Writer
from anchorlib.store.objects import FolderShelf, ShelfWithin
from anchorlib.store.seal import deflated
from anchorlib.store.seal.rank_index import index_document, read_index
from tests.anchorlib.peers.jobs import as_drawn, drawn, flipped, of_rank
from tests.cli.made import anchor, make_run, record
from tests.seeds import examples
from tests.writing import put

RANKS, STEPS = 3, 3
RUNS = ("run1", "run2")
NAMES = ("w@value", "x@value", "x@grad")


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting for the disk, which takes most of the time of an archive this small."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _descriptor: None)


@pytest.fixture(scope="module")
def first() -> Iterator[Path]:
    """An archive that holds "run1"."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        patch.setattr(os, "fdatasync", lambda _descriptor: None)
        yield archived(Path(folder), "run1", {rank: as_made(rank) for rank in range(RANKS)})


def as_made(rank: int) -> list[Record]:
    """What a rank of "run1" records."""
    return of_rank(rank, STEPS, as_drawn)


def other(one: Record) -> Record:
    """The record with one bit of its values flipped."""
    assert one.raw is not None
    where = {"step": one.coordinates.step, "rank": one.rank}
    return record(one.name, one.kind, flipped(one.raw, 3), mode=one.mode, **where)


def archived(store: Path, run: str, ranks: dict[int, list[Record]]) -> Path:
    """The archive of a run of these records."""
    for rank, records in ranks.items():
        make_run(store, records, run, rank=rank)
    archive_run(store, run, shelf_at(str(store / "archive")))
    return store / "archive"


def flip(*ranks: int, since: int = 1, name: str = "x@value") -> dict[int, list[Record]]:
    """The records of "run1", with a bit of one tensor flipped on these ranks from a step on."""
    return {
        rank: [
            other(one) if rank in ranks and one.step >= since and _named(one) == name else one
            for one in as_made(rank)
        ]
        for rank in range(RANKS)
    }


def _named(one: Record) -> str:
    return f"{one.name}@{one.kind}"


@pytest.fixture
def place(tmp_path: Path, first: Path) -> Path:
    """An archive of the test's own that holds "run1"."""
    shutil.copytree(first, tmp_path / "archive")
    return tmp_path / "archive"


@contextmanager
def opened() -> Iterator[set[int]]:
    """The ranks of which any rows are read meanwhile."""
    found: set[int] = set()
    one, every = RunReader.rank, RunReader.each_rank

    def rank(self: RunReader, number: int) -> RankReader:
        found.add(number)
        return one(self, number)

    def each_rank(self: RunReader, ranks: Sequence[int]) -> Iterator[RankReader]:
        for reader in every(self, ranks):
            found.add(reader.rank)
            yield reader

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunReader, "rank", rank)
        patch.setattr(RunReader, "each_rank", each_rank)
        yield found


def told(place: Path, *runs: str, **options: Any) -> tuple[set[int], str]:
    """The ranks that a comparison opens, and all that it says, with its pairs."""
    with opened() as seen:
        found = anchorlib.compare(*runs, store=place, **options)
        answer = [found.to_dict(), found.damaged, repr(found)]
    return {*seen}, json.dumps([*answer, *_pairs(found)], default=repr)


def _pairs(found: Comparison) -> Sequence[Any]:
    return [*found.columns(), *found.pairs()]


def digests_in(run: Path) -> Path:
    """The one object with the digests of an archived run."""
    (found,) = run.glob("digests-*")
    return found


def whole(place: Path, *runs: str, **options: Any) -> str:
    """What a comparison says that opens all ranks, for it has no digests."""
    for one in place.glob("*/digests-*"):
        one.rename(one.with_name(f"away-{one.name}"))
    try:
        seen, said = told(place, *runs, **options)
        assert seen == {rank for run in runs for rank in open_run(run, place).ranks}
        return said
    finally:
        for one in place.glob("*/away-*"):
            one.rename(one.with_name(one.name.removeprefix("away-")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("differing", "read", "line"),
    [
        ((), {0}, "ranks 0-2, none differs"),
        ((0,), {0, 1}, "ranks 0-2, 1 differs (0); first at step 1 (rank 0)"),
        ((1, 2), {0, 1, 2}, "ranks 0-2, 2 differ (1, 2); first at step 1 (ranks 1-2)"),
        ((0, 1, 2), {0, 1, 2}, "ranks 0-2, all differ; first at step 1 (ranks 0-2)"),
    ],
)
def test_of_equal_ranks_one_is_opened_and_the_answer_is_that_of_all(
    place: Path, differing: tuple[int, ...], read: set[int], line: str
) -> None:
    archived(place.parent, "run2", flip(*differing))
    known = compare_digests(*(open_run(run, place) for run in ("run1", "run2")))
    assert known is not None
    assert known.line() == line
    seen, said = told(place, "run1", "run2")
    assert seen == read
    assert said == whole(place, "run1", "run2")


Fault = tuple[str, int, int, str]
FAULTS = st.tuples(
    st.sampled_from(("flip", "lost", "ends", "moved", "again", "mode", "name", "scale")),
    st.integers(0, RANKS - 1),
    st.integers(0, STEPS - 1),
    st.sampled_from(NAMES),
)


def planted(faults: Sequence[Fault]) -> dict[int, list[Record]]:
    """The records of "run1" with these faults, of which a rank may have several."""
    found = {rank: as_made(rank) for rank in range(RANKS)}
    for what, rank, step, name in faults:
        found[rank] = [new for one in found[rank] for new in _faulty(what, one, step, name)]
        if what == "moved":  # another order of execution, and the same records
            found[rank].sort(key=lambda one: (one.step, one.name, one.kind))
    return found


def _faulty(what: str, one: Record, step: int, name: str) -> Sequence[Record]:
    if what == "ends":
        return [one] if one.step < max(step, 1) else []
    if (one.step, _named(one)) != (step, name):
        return [one]
    made: dict[str, Sequence[Record]] = {
        "flip": [other(one)],
        "lost": [],
        "again": [one, other(one)],
        "mode": [replace(one, mode="final:window=1")],
        "name": [replace(one, name=f"{one.name}.other")],
        "scale": [replace(one, scale=2.0)],
    }
    return made.get(what, [one])


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(st.lists(FAULTS, max_size=3))
@example([("scale", 1, 0, "x@grad"), ("moved", 2, 0, "w@value")])
@example([("lost", 2, 2, "x@value")])
def test_the_answer_is_that_of_all_ranks_wherever_runs_differ(
    first: Path, faults: list[Fault]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "archive"
        shutil.copytree(first, place)
        archived(Path(folder), "run2", planted(faults))
        for runs in (("run1", "run2"), ("run2", "run1")):
            assert told(place, *runs)[1] == whole(place, *runs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"tensors": "w*"},
        {"tensors": ["*@grad", "b"]},
        {"noise": ["run3"]},
        {"reference": "run1"},
        {"names": {"x": "x"}},
        {"ops": False},
        {"replay": True},
    ],
    ids=repr,
)
def test_no_option_changes_what_is_answered(place: Path, options: dict[str, Any]) -> None:
    archived(place.parent, "run2", flip(2))
    if "noise" in options:
        archived(place.parent, "run3", flip(1))
    seen, said = told(place, "run1", "run2", **options)
    assert said == whole(place, "run1", "run2", **options)
    assert (seen == {*range(RANKS)}) == ("noise" in options or "reference" in options)


@pytest.mark.slow
def test_what_the_digests_do_not_know_is_opened(place: Path) -> None:
    archived(place.parent, "run2", flip())
    assert told(place, "run1", "run2")[0] == {0}
    run = place / "run2.zarr"
    _forget(run, 1)  # as if an older version had sealed this rank
    seen, said = told(place, "run1", "run2")
    assert seen == {0, 1}
    assert said == whole(place, "run1", "run2")
    _forget(place / "run1.zarr", 1)  # now both may hold traced operations, on rank 1
    assert told(place, "run1", "run2")[0] == {*range(RANKS)}
    assert told(place, "run1", "run2", ops=False)[0] == {0, 1}
    with Writer.open(place, "run2", 7) as writer:  # a rank that is still written: no index counts
        put(writer, [replace(one, rank=7) for one in as_made(0)])
        assert told(place, "run1", "run2")[0] == {*range(RANKS), 7}


def _forget(run: Path, rank: int) -> None:
    """Writes the index of a rank, and that of its run, as a version without digests did."""
    shelf = ShelfWithin(FolderShelf(run.parent), run.name)
    figures = read_index(shelf.location, rank)
    assert figures is not None
    old = index_document(replace(figures, digests=None))
    (run / f"rank{rank}" / RUN_INDEX).write_bytes(deflated(old))
    (run / RUN_INDEX).unlink()
    digests_in(run).unlink()
    put_index(shelf, range(RANKS))


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["other", "cut", "flipped", "missing", "index"])
def test_damaged_digests_are_as_good_as_none(place: Path, damage: str) -> None:
    archived(place.parent, "run2", flip(1))
    said = whole(place, "run1", "run2")
    mine, others = (digests_in(place / run) for run in ("run2.zarr", "run1.zarr"))
    raw = mine.read_bytes()
    if damage == "other":  # equal to A's: taken at its word, nothing would differ
        mine.write_bytes(others.read_bytes())
    elif damage == "missing":
        mine.unlink()
    elif damage == "index":
        (place / "run2.zarr" / RUN_INDEX).write_bytes(b"\0" * 40)
    else:
        mine.write_bytes(raw[:-9] if damage == "cut" else raw[:40] + b"\0" + raw[41:])
    assert told(place, "run1", "run2") == ({*range(RANKS)}, said)
    code = anchor("verify", "run2", "--store", place).code
    assert code == (0 if damage == "index" else 1), "a damaged index is made anew from its ranks"


@pytest.mark.slow
def test_verify_finds_digests_that_are_not_those_of_the_rows(place: Path) -> None:
    archived(place.parent, "run2", flip(1))
    of = [read_index(ShelfWithin(FolderShelf(place), f"{run}.zarr").location, 1) for run in RUNS]
    assert of[0] is not None
    assert of[1] is not None
    lying = index_document(replace(of[1], digests=of[0].digests))
    (place / "run2.zarr/rank1" / RUN_INDEX).write_bytes(deflated(lying))
    found = anchor("verify", "run2", "--store", place)
    assert found.code == 1
    assert "rank 1: the digests of its steps are not those of its rows" in found.out
    assert "tells another recording than rank 1: archive the run again" in found.out


@pytest.mark.slow
def test_the_command_says_first_what_the_digests_tell(place: Path) -> None:
    archived(place.parent, "run2", flip(1))
    found = anchor("compare", "run1", "run2", "--store", place, "--json")
    assert found.err.splitlines()[0] == (
        "anchor: by their digests ranks 0-2, 1 differs (1); first at step 1 (rank 1); these are "
        "read now"
    )
    assert found.json["ranks"] == {"compared": "0-2", "differing": "1"}
    assert not anchor("compare", "run1", "run1", "--store", place, "--json").err
    heard: list[str] = []
    anchorlib.compare("run1", "run2", store=place, beforehand=heard.append)
    assert heard == ["ranks 0-2, 1 differs (1); first at step 1 (rank 1)"]


@pytest.mark.slow
def test_where_most_differs_ranks_that_were_not_read_keep_the_steps(place: Path) -> None:
    """B's rank 0 is a step late, and most of its records differ. Rank 2 tells that no step moved;
    rank 1, which has the same outline, holds constants and tells nothing.
    """
    steps, moved = 6, {"run3": 0, "run4": 1}
    for run, late in moved.items():
        ranks: dict[int, list[Record]] = {0: [], 1: [], 2: []}
        for step in range(steps):
            ranks[0] += [
                record(name, raw=drawn(step - late + 1, n), step=step)
                for n, name in enumerate("uvw")
            ]
            ranks[1].append(record("b", raw=np.zeros(4, np.float32), step=step, rank=1))
            ranks[2].append(record("b", raw=drawn(step, 9), step=step, rank=2))
        archived(place.parent, run, ranks)
    assert told(place, "run3", "run4")[1] == whole(place, "run3", "run4")
    assert anchorlib.compare("run3", "run4", store=place).step_offset == 0
