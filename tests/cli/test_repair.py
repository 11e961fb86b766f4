"""`anchor repair`: whatever is damaged, no sound row is lost, and no wrong one is kept."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anchor_server import serve
from anchorlib.record import Edges
from anchorlib.store import LocalLocation, RankReader, Writer, list_runs, stored_records
from anchorlib.store.format import edges_line, encode
from anchorlib.store.format.layout import LABELS
from tests.cli.made import Outcome, anchor, make_run, record
from tests.security.hostile import (
    SPOILT,
    STRANGE,
    Change,
    HostilePlace,
    catalogue_of,
    files_of,
    make_hostile,
    remove,
)

Told = dict[tuple[Any, ...], tuple[Any, ...]]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("template") / "store"
    make_hostile(store)
    return store


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture(scope="module")
def truth(template: Path) -> Told:
    return told_of(template / "bad.zarr")


def told_of(run: Path) -> Told:
    """Each record of rank 0: what tells it from others, and all that it says."""
    reader = RankReader(LocalLocation(run), 0)
    found: Told = {}
    rows = np.arange(reader.committed)
    for number, one in enumerate(stored_records(reader, rows)):
        assert one.summary is not None
        attempt = int(reader.cell("attempt", number))
        key = (one.name, one.kind, one.mode, one.coordinates, attempt)
        raw = None if one.raw is None else one.raw.tobytes()
        found[key] = (raw, one.shape, one.dtype, one.summary, one.count, one.scale, one.time_ns)
    assert len(found) == len(rows)
    return found


def files(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """All that a folder holds."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        what: bytes | str = str(path.readlink()) if path.is_symlink() else ""
        if path.is_file() and not path.is_symlink():
            what = path.read_bytes()
        found[str(path.relative_to(folder))] = mode, what
    return found


def repaired(store: Path, what: str) -> tuple[Path, Outcome]:
    """Repairs the run `bad` in place if that can be, else into another; where it is, and how."""
    before = files(store / "bad.zarr")
    planned = anchor("repair", "bad", "--dry-run", "--store", store)
    assert "internal error" not in planned.err, what
    assert files(store / "bad.zarr") == before, what
    done = anchor("repair", "bad", "--store", store)
    assert "internal error" not in done.err, (what, done)
    if done.code in (0, 3):
        return store / "bad.zarr", done
    before = files(store / "bad.zarr")
    done = anchor("repair", "bad", "--as", "mended", "--store", store)
    assert files(store / "bad.zarr") == before, what
    made = (store / "mended.zarr").exists()
    assert done.code in ((0, 3) if made else (1, 2)), (what, done)
    return store / "mended.zarr", done


def check(store: Path, what: str, truth: Told) -> tuple[Told, int]:
    """What is left after a repair: all of it as it was written. And how many rows are lost."""
    run, _ = repaired(store, what)
    if not run.exists():
        assert "catalog/c.0" in what
        return {}, len(truth)
    left = told_of(run)
    for key, said in left.items():
        whole = truth[key]
        assert said[1:] == whole[1:], (what, key)
        assert said[0] in (None, whole[0]), (what, key)
    return left, len(truth) - len(left)


def is_label(name: Path) -> bool:
    """Whether a file holds what stands beside values."""
    return "forms" in name.parts and name.parent.name in LABELS


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [SPOILT, *(pytest.param(some, marks=pytest.mark.long) for some in ([remove], STRANGE))],
    ids=["spoilt", "gone", "strange"],
)
def test_whatever_becomes_of_a_file_what_is_left_is_sound(
    template: Path, tmp_path: Path, truth: Told, changes: list[Change]
) -> None:
    dice = random.Random(len(changes))
    place = HostilePlace(None, template, tmp_path)  # type: ignore[arg-type]  # calls nothing
    names = [path.relative_to(place.run) for path in files_of(place.run)]
    documents = [name for name in names if name.name == "zarr.json"]
    columns = [name for name in names if "records" in name.parts and name not in documents]
    others = [name for name in names if name not in documents and name not in columns]
    for name in [*dice.sample(documents, 5), *dice.sample(columns, 7), *dice.sample(others, 8)]:
        change = dice.choice(changes)
        change(place.run / name, dice, place)
        what = f"{change.__name__} {name}"
        _, lost = check(place.store, what, truth)
        if name.name == "zarr.json" or is_label(name):
            assert lost == 0, what
            # A folder where a file belongs is not removed: somebody may have put things into it.
            there = (place.store / "mended.zarr").exists()
            assert there == (change.__name__ == "make_folder"), what
        shutil.rmtree(place.store / "mended.zarr", ignore_errors=True)
        place.mend()


@pytest.mark.slow
@pytest.mark.parametrize("key", ["series", "form", "array", "phase", "attempt", "state", "rank"])
def test_a_line_of_the_catalogue_costs_the_rows_that_spoke_of_it(
    store: Path, truth: Told, key: str
) -> None:
    lines = catalogue_of(store / "bad.zarr")
    catalogue = store / "bad.zarr/rank0/catalog/c.0"
    data = catalogue.read_bytes()
    told = data.rstrip(b"\0").split(b"\n")
    number = next(at for at, one in enumerate(lines) if next(iter(one)) == key)
    told[number] = told[number].replace(b'"check"', b'"chXck"')
    catalogue.write_bytes(b"\n".join(told).ljust(len(data), b"\0"))
    left, _ = check(store, key, truth)
    lost = set(truth) - set(left)
    costs = {
        "series": {one for one in truth if one[0] == "fc1"},
        "form": {one for one in truth if one[0] in ("fc1", "act")},
        "phase": set(truth),
    }
    assert lost == costs.get(key, set())


def test_a_line_that_fits_its_checksum_and_is_malformed_costs_no_row(tmp_path: Path) -> None:
    """Earlier versions wrote a symbol of torch as a size, of which no reader made sense."""
    make_run(tmp_path, [record("fc1", step=step) for step in range(3)], "bad")
    truth = told_of(tmp_path / "bad.zarr")
    catalogue = tmp_path / "bad.zarr/rank0/catalog/c.0"
    line = edges_line(Edges("fc1", "train", 0, 0, (2, 4)))
    line["edges"]["shape"] = [2, "j1"]
    data = catalogue.read_bytes()
    catalogue.write_bytes((data.rstrip(b"\0") + encode(line)).ljust(len(data), b"\0"))
    assert anchor("names", "bad", "--store", tmp_path).code != 0
    left, lost = check(tmp_path, "edges", truth)
    assert (left, lost) == (truth, 0)
    assert anchor("names", "mended", "--store", tmp_path).code == 0


@pytest.mark.parametrize("lost", ["catalog", "records", "records/seq"])
def test_a_rank_that_lost_a_whole_folder_is_no_empty_rank(store: Path, lost: str) -> None:
    shutil.rmtree(store / "good.zarr/rank0" / lost)
    before = files(store / "good.zarr")
    for options in (["--dry-run"], []):
        done = anchor("repair", "good", *options, "--store", store)
        assert done.code != 0
        assert "all sound" not in done.out
        assert "made again" not in done.out
    assert files(store / "good.zarr") == before


@pytest.mark.slow
def test_a_hole_in_seq_costs_no_row(store: Path, truth: Told) -> None:
    seq = store / "bad.zarr/rank0/records/seq/c.0"
    numbers = np.fromfile(seq, "<u8")
    numbers[2] = 77
    seq.write_bytes(numbers.tobytes())
    left, lost = check(store, "seq", truth)
    assert (left, lost) == (truth, 0)


def test_a_value_that_is_damaged_keeps_its_summary(tmp_path: Path) -> None:
    """Where its histogram was stored; one that was to be counted in values is lost with them."""
    rng = np.random.default_rng(3)
    large = [record("large", raw=rng.normal(size=100_000), step=step) for step in range(3)]
    make_run(tmp_path, [*large, *(record("small", step=step) for step in range(3))], "bad")
    truth = told_of(tmp_path / "bad.zarr")
    for form in ("float64_100000", "float32_4"):
        values = tmp_path / f"bad.zarr/rank0/forms/{form}/value"
        chunk = min(values.glob("c.*"))
        data = bytearray(chunk.read_bytes())
        data[5] ^= 1
        chunk.write_bytes(data)
    run, done = repaired(tmp_path, "value")
    assert done.code == 3
    assert "1 of 6 rows are lost; 1 record lost the values, not the summary" in done.out
    for name in ("large", "small"):
        assert f"{name}@grad lacks 1 of steps 0-0: the values were damaged on disk" in done.out
    left = told_of(run)
    (gone,) = truth.keys() - left.keys()
    (bare,) = (key for key in left if left[key] != truth[key])
    assert (gone[0], gone[3].step, bare[0], bare[3].step) == ("small", 0, "large", 0)
    assert left[bare] == (None, *truth[bare][1:])


def test_what_stands_beside_records_comes_along(store: Path, truth: Told) -> None:
    (store / "bad.zarr/rank0/records/min/c.0").unlink()
    done = anchor("repair", "bad", "--as", "mended", "--store", store, "--json")
    assert done.code == 3
    sound = RankReader(LocalLocation(store / "bad.zarr"), 0).catalogue
    mended = RankReader(LocalLocation(store / "mended.zarr"), 0).catalogue
    assert len(mended.attempts) == 2
    assert mended.attempts[1].header == sound.attempts[1].header
    assert [edges.ops for edges in mended.edges.values()] == [("ReluBackward0",)]
    assert "the queue was full" in {gap.reason for gap in mended.gaps.values()}


@pytest.mark.slow
def test_a_rank_that_is_lost_can_be_dropped(store: Path) -> None:
    make_run(store, [record(rank=1)], "bad", rank=1)
    shutil.rmtree(store / "bad.zarr/rank1/catalog")
    refused = anchor("repair", "bad", "--drop-rank", "0", "--drop-rank", "1", "--store", store)
    assert (refused.code, "anchor rm bad" in refused.err) == (2, True)
    unknown = anchor("repair", "bad", "--drop-rank", "7", "--store", store)
    assert (unknown.code, "no rank 7" in unknown.err) == (2, True)
    assert anchor("repair", "bad", "--store", store).code == 1
    planned = anchor("repair", "bad", "--drop-rank", "1", "--dry-run", "--store", store)
    assert "rank 1: would be removed\n" in planned.out
    done = anchor("repair", "bad", "--drop-rank", "1", "--store", store)
    assert done.code == 3  # the gap that it was recorded with
    assert "rank 1: removed\nrank 0: 25 rows, all sound\n" in done.out
    assert anchor("names", "bad", "--store", store).code == 0


@pytest.mark.slow
def test_a_run_that_is_whole_is_left_alone_and_one_that_is_written_is_refused(store: Path) -> None:
    before = files(store / "good.zarr")
    done = anchor("repair", "good", "--store", store)
    assert (done.code, done.err) == (0, "")
    assert files(store / "good.zarr") == before
    with Writer.open(store, "good", 0, resume=True):
        refused = anchor("repair", "good", "--store", store)
    assert (refused.code, "is being written by" in refused.err) == (2, True)


@pytest.mark.slow
def test_a_name_that_is_taken_is_refused_and_leaves_nothing(store: Path) -> None:
    done = anchor("repair", "bad", "--as", "good", "--store", store)
    assert (done.code, "there is a run 'good'" in done.err) == (2, True)
    assert anchor("repair", "bad", "--as", "../bad", "--store", store).code == 2
    assert list_runs(LocalLocation(store)) == ["bad", "good"]
    assert list((store / ".anchor/tmp").iterdir()) == []


@pytest.mark.slow
def test_no_link_inside_a_run_is_written_through(store: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    run = store / "bad.zarr/rank0/forms/float32_4"
    (run / "step").rename(outside)
    (run / "step").symlink_to(outside)
    before = files(outside)
    done = anchor("repair", "bad", "--store", store)
    assert done.code == 2  # as of verify, which reads no link
    assert "step is no folder of its own" in done.out
    assert files(outside) == before


def test_a_collectors_run_is_repaired_on_its_machine(store: Path) -> None:
    with serve(store) as collector:
        done = anchor("repair", f"grpc://{collector.address}/bad")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "do this on its machine" in done.err
