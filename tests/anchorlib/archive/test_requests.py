"""How many requests an answer from an object store costs, however many ranks there are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import anchorlib
from anchorlib.archive import archive_run, shelf_at
from anchorlib.archive.index import put_index
from anchorlib.diagnosis import compare_digests
from anchorlib.errors import DamagedError
from anchorlib.reading import open_run
from anchorlib.store import LocalLocation, Writer
from anchorlib.store.format import encode
from anchorlib.store.format.layout import INDEX, digests_key
from anchorlib.store.objects import ShelfWithin
from anchorlib.store.read import digests_bytes, object_name, run_index
from anchorlib.store.read.run_figures import RunFigures
from anchorlib.store.read.run_index import index_bytes, parsed_index
from anchorlib.store.seal import rank_index, read_index, sealing
from anchorlib.store.seal.codecs import deflated, inflated
from tests.anchorlib.reading.runs import STEPS, make_run, training
from tests.bucket import Line, object_store, put_inside
from tests.cli.made import anchor
from tests.writing import put

S3 = "s3://anchors/of/us"
RANKS = 1024


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    with object_store(monkeypatch) as line:
        yield line


@pytest.mark.slow
def test_names_and_pooled_hist_of_a_thousand_ranks_are_four_requests(
    tmp_path: Path, line: Line
) -> None:
    store = make_run(tmp_path / "store")
    shelf = shelf_at(S3)
    archive_run(store, "run1", shelf)
    folder = ShelfWithin(shelf, "run1.zarr")
    one = read_index(folder.location, 0)
    assert one is not None
    # Of each rank, what makes it listed.
    listed = {f"of/us/run1.zarr/rank{rank}/zarr.json": b"{}" for rank in range(1, RANKS)}
    put_inside("anchors", listed)
    merged = RunFigures.of(replace(one, rank=rank) for rank in range(RANKS))
    folder.put(INDEX, index_bytes(merged))
    line.asked.clear()
    names = anchor("names", "run1", "--store", S3, "--json")
    assert (names.code, len(line.asked)) == (0, min(len(line.asked), 4))
    assert {len(entry["ranks"]) for entry in names.json} == {RANKS}
    line.asked.clear()
    pooled = anchor("hist", "run1", "-t", "*@grad", "--store", S3, "--json")
    assert (pooled.code, len(line.asked)) == (0, min(len(line.asked), 4))
    here = anchor("hist", "run1", "-t", "*@grad", "--store", store, "--json").json
    assert pooled.json["numel"] == RANKS * here["numel"]
    assert pooled.json["bins"] == {bin_: RANKS * count for bin_, count in here["bins"].items()}


@pytest.mark.slow
def test_one_tensor_of_one_rank_is_four_requests_a_shard(tmp_path: Path, line: Line) -> None:
    store = make_run(tmp_path / "store", ranks=2)
    archive_run(store, "run1", shelf_at(S3))
    run = open_run("run1", S3)
    run.series("fc1", rank=1)  # its table is read once
    line.asked.clear()
    assert len(run.series("fc2", "grad", rank=1).values()) == 6
    assert len(line.asked) <= 4 * len({path.partition("?")[0] for _, path in line.asked})


@pytest.mark.slow
def test_the_index_says_what_the_ranks_say(tmp_path: Path, line: Line) -> None:
    store = make_run(tmp_path / "store", ranks=3)
    archive_run(store, "run1", shelf_at(S3))
    folder = ShelfWithin(shelf_at(S3), "run1.zarr")
    there, here = open_run("run1", S3), open_run("run1", store)
    assert there.tensors() == here.tensors()
    assert there.histograms("*") == here.histograms("*")
    assert (there.steps, there.bytes, there.gaps()) == (here.steps, here.bytes, here.gaps())
    whole = folder.fetch(INDEX)
    assert whole is not None
    for damaged in (b"", whole[0][:-3], b"\0" * 40):  # the ranks themselves are asked
        folder.put(INDEX, damaged)
        assert open_run("run1", S3).tensors() == here.tensors()
    part = RunFigures.of([read_index(folder.location, rank) for rank in (0, 2)])  # type: ignore[list-item]
    folder.put(INDEX, index_bytes(part))
    assert open_run("run1", S3).tensors() == here.tensors()  # a rank that came later is seen
    put_index(folder, [1])
    found = folder.fetch(INDEX)
    assert found is not None
    assert parsed_index(found[0]) == parsed_index(whole[0])


@pytest.mark.slow
def test_an_index_that_is_too_large_is_not_made_and_the_ranks_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, shelf = make_run(tmp_path / "store", ranks=2), shelf_at(str(tmp_path / "archive"))
    archive_run(store, "run1", shelf)
    tensors = open_run("run1", store).tensors()
    assert open_run("run1", shelf.place).tensors() == tensors
    folder = ShelfWithin(shelf, "run1.zarr")
    monkeypatch.setattr(run_index, "MOST_BYTES", 1000)
    put_index(folder, [0, 1])
    assert folder.fetch(INDEX) is None
    assert open_run("run1", shelf.place).tensors() == tensors
    monkeypatch.setattr(rank_index, "MOST_BYTES", 1000)
    monkeypatch.setattr(sealing, "MOST_BYTES", 1000)
    archive_run(make_run(tmp_path / "other"), "run1", other := shelf_at(str(tmp_path / "another")))
    assert not [key for key in other.held("run1.zarr") if key.endswith(INDEX)]
    assert open_run("run1", other.place).steps == [0, 1, 2]


def test_an_index_reads_as_it_was_written(tmp_path: Path) -> None:
    shelf = shelf_at(str(tmp_path / "archive"))
    archive_run(make_run(tmp_path / "store", ranks=2), "run1", shelf)
    location = ShelfWithin(shelf, "run1.zarr").location
    ranks = [one for rank in (0, 1) if (one := read_index(location, rank)) is not None]
    whole = RunFigures.of(ranks)
    assert parsed_index(index_bytes(whole)) == whole
    assert RunFigures.of(ranks[:1]).joined(RunFigures.of(ranks[1:])) == whole


@pytest.mark.parametrize("what", ["ranks", "steps", "ranks of a series", "steps of a rank"])
def test_an_index_that_speaks_of_more_than_there_can_be_is_refused(
    tmp_path: Path, what: str
) -> None:
    shelf = shelf_at(str(tmp_path / "archive"))
    archive_run(make_run(tmp_path / "store"), "run1", shelf)
    run = tmp_path / "archive" / "run1.zarr"
    path = run / "rank0" / INDEX if what == "steps of a rank" else run / INDEX
    told = json.loads(inflated(path.read_bytes(), 1 << 20))
    del told["check"]
    field, _, whose = what.partition(" of a ")
    (told["series"][0] if whose == "series" else told)[field] = [[0, 1 << 25]]
    told |= {"records": 1 << 40} if whose == "rank" else {}
    data = deflated(encode(told))
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="speaks of more"):
        read_index(LocalLocation(run), 0) if whose == "rank" else parsed_index(data)


@pytest.mark.slow
def test_a_thousand_ranks_are_compared_by_their_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, place = tmp_path / "store", tmp_path / "archive"
    for run in ("run1", "run2"):
        for rank in (0, RANKS - 1):
            other = run == "run2" and rank > 0
            with Writer.open(store, run, rank) as writer:
                for step in range(STEPS):
                    put(writer, training(step, scale=1.5 if other and step == 2 else 1.0))
        archive_run(store, run, shelf_at(str(place)))
        _make_many(place / f"{run}.zarr")
    asked: list[str] = []
    whole = LocalLocation.get

    def get(self: LocalLocation, key: str, *part: int) -> bytes | None:
        asked.append(key)
        return whole(self, key, *part)

    monkeypatch.setattr(LocalLocation, "get", get)
    known = compare_digests(*(open_run(run, place) for run in ("run1", "run2")))
    assert known is not None
    assert known.line() == "ranks 0-1023, 1 differs (1023); first at step 2 (rank 1023)"
    digests = [one.name for one in place.glob("*/digests-*")]
    assert sorted(asked) == sorted([INDEX, INDEX, *digests])
    found = anchorlib.compare("run1", "run2", store=place)
    assert found.counts.matched == RANKS * len(training(0)) * STEPS
    assert found.to_dict()["ranks"] == {"compared": "0-1023", "differing": "1023"}
    assert {key.partition("/")[0] for key in asked if "/" in key} == {"rank0", f"rank{RANKS - 1}"}


def _make_many(run: Path) -> None:
    """Makes an archived run of two ranks one of many, whose other ranks are as its first."""
    first, last = (read_index(LocalLocation(run), rank) for rank in (0, RANKS - 1))
    assert first is not None
    assert last is not None
    ranks = [*(replace(first, rank=rank) for rank in range(RANKS - 1)), last]
    for rank in range(1, RANKS - 1):
        (run / f"rank{rank}").mkdir()
    for older in run.glob("digests-*"):
        older.unlink()
    digests = digests_bytes({one.rank: one.digests for one in ranks if one.digests is not None})
    (run / digests_key(object_name(digests))).write_bytes(digests)
    merged = replace(RunFigures.of(ranks), digests=object_name(digests))
    (run / INDEX).write_bytes(index_bytes(merged))
