"""A run of format 1, which version 0.1.0 wrote, reads through the same doors as one of today."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from anchorlib.errors import DamagedError, RunExistsError
from anchorlib.reading import Run, open_run
from anchorlib.record import Edges, Gap, Parent
from anchorlib.store import LocalLocation, RankAudit, RankReader, Writer
from anchorlib.summary import digest
from tests.anchorlib.store.auditing import faults, flip
from tests.security.hostile import catalogue_of, write_catalogue

FIXTURES = Path(__file__).parents[3] / "fixtures"
Told = dict[str, Any]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store that holds it; tests leave it as it is."""
    store = tmp_path_factory.mktemp("old")
    with tarfile.open(FIXTURES / "format1.tar.xz") as archive:
        archive.extractall(store, filter="data")
    return store


@pytest.fixture(scope="module")
def told() -> list[Told]:
    """Every record of it, in the order in which each rank made them."""
    found: list[Told] = json.loads((FIXTURES / "format1.json").read_text())
    return found


def by_series(told: list[Told]) -> dict[tuple[int, str, str, str], list[Told]]:
    """The records of each series; of a coordinate that was recorded again those of the last."""
    groups: dict[tuple[int, str, str, str], dict[tuple[Any, ...], Told]] = {}
    for one in told:
        key = (one["rank"], one["name"], one["kind"], one["mode"])
        place = (one["step"], one["pass_index"], one["call"], one["phase"])
        groups.setdefault(key, {}).pop(place, None)
        groups[key][place] = one
    return {key: list(found.values()) for key, found in groups.items()}


@pytest.mark.slow
def test_every_record_of_format_1_is_what_was_recorded(old: Path, told: list[Told]) -> None:
    run = open_run("run1", old)
    groups = by_series(told)
    for (rank, name, kind, mode), wanted in groups.items():
        series = run.series(name, kind, rank=rank, mode=mode)
        assert [record_of(one) for one in series.records(summaries=True)] == [
            {key: value for key, value in one.items() if key != "attempt"} for one in wanted
        ]
    assert sum(info.records for info in run.tensors()) == sum(map(len, groups.values()))
    assert {(info.name, info.kind, info.mode) for info in run.tensors()} == {
        key[1:] for key in groups
    }


def record_of(one: Any) -> Told:
    """A record as the fixture tells it; the digest is that of the values that were read."""
    at, summary = one.coordinates, one.summary
    if one.raw is not None:
        assert digest(one.raw) == summary.digest
    return {
        "rank": one.rank, "name": one.name, "kind": one.kind, "mode": one.mode,
        "step": at.step, "pass_index": at.pass_index, "call": at.call, "phase": at.phase,
        "time_ns": one.time_ns, "count": one.count, "scale": one.scale, "flags": int(one.flags),
        "dtype": one.dtype, "shape": list(one.shape), "digest": summary.digest.hex(),
        "kept": one.raw is not None,
        "figures": [float(f).hex() for f in (summary.min, summary.max, summary.sum, summary.l2)],
        "bins": summary.histogram.to_dict()["bins"],
    }  # fmt: skip


def test_stacks_gaps_edges_and_attempts_of_format_1_read_as_ever(old: Path) -> None:
    run = open_run("run1", old)
    assert (run.ranks, run.state) == ([0, 1, 3], "open")
    assert run.series("fc1", "opt.exp_avg", rank=1).values().shape == (3, 40)
    assert len(run.series("fc1", "grad", rank=0, mode="all", attempts=True)) == 6
    assert run.header(0) == {"attempt": 1, "torch": "2.13"}
    assert Gap("fc1", "grad", "all", "queue full", 3, 4, 6) in run.rows(0)[0].gaps()
    parents = (Parent("input"), Parent("fc1.weight", None))
    assert run.edges(1) == [Edges("fc1", "train", 0, 0, (40,), 0, parents, ("AddmmBackward0",))]
    shapes = run.series("tokens", rank=3).shapes
    assert len(set(shapes)) == 13


@pytest.mark.slow
def test_format_1_fits_its_checksums_and_a_flipped_bit_does_not(old: Path, tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        location = LocalLocation(old / "run1.zarr")
        audit = RankAudit(location, RankReader(location, rank))
        assert list(audit.faults()) == []
        for part in audit.parts():
            found = audit.rows(*part)
            assert (found.bad, found.labels, found.unchecked) == ([], [], 0)
    store = tmp_path / "store"
    with tarfile.open(FIXTURES / "format1.tar.xz") as archive:
        archive.extractall(store, filter="data")
    for key, row in (
        ("records/variant/c.0", 3),
        ("records/min/c.0", 4),
        ("tensors/tokens/value/flat_8_shape/c.0.0", None),
        ("tensors/tokens/value/flat_8_offset/c.0", None),
        ("tensors/fc1/value/step/c.0", None),
    ):
        path = store / "run1.zarr/rank0" / key
        width = 32 if "variant" in key else 64
        flip(path, width * (row or 0))
        found_rows = faults(store)
        assert found_rows
        assert row is None or row in found_rows
        flip(path, width * (row or 0))
    assert faults(store) == []


def test_format_1_is_not_written_any_more(old: Path) -> None:
    for ask in ({"resume": True}, {"writer_id": b"x", "resume": True}):
        with pytest.raises(RunExistsError, match="format 1, which is read and no longer written"):
            Writer.open(old, "run1", 0, **ask)
    with pytest.raises(RunExistsError, match="exists already"):
        Writer.open(old, "run1", 0)


@pytest.mark.slow
def test_a_copy_of_a_run_of_format_1_is_one_of_today_and_equal(
    old: Path, told: list[Told], tmp_path: Path
) -> None:
    from anchorlib.sinks.copying import copy_run
    from anchorlib.store import find_run

    copy_run(
        find_run("run1", old), str(tmp_path), "run1", patience=30, progress=lambda done, of: None
    )
    here, there = open_run("run1", tmp_path), open_run("run1", old)
    assert here.rows(0)[0].catalogue.version == 2
    assert [told_of(here, info) for info in here.tensors()] == [
        told_of(there, info) for info in there.tensors()
    ]
    assert faults(tmp_path) == []


def told_of(run: Run, info: Any) -> list[Told]:
    """Every record of a tensor, on all of its ranks."""
    return [
        record_of(one)
        for rank in info.ranks
        for one in run.series(info.name, info.kind, rank=rank, mode=info.mode).records(
            summaries=True
        )
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("series", {"path": "../../../secret"}),
        ("array", {"name": "../../../secret"}),
        ("array", {"rows": 0}),
        ("variant", {"shape": [-4]}),
        ("variant", {"series": 1 << 40}),
        ("variant", {"ndim": 65}),
    ],
)
def test_a_catalogue_of_format_1_that_says_what_cannot_be_is_damaged(
    kind: str, told: Told, tmp_path: Path
) -> None:
    with tarfile.open(FIXTURES / "format1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    entries = catalogue_of(tmp_path / "run1.zarr")
    next(one for one in entries if kind in one and told.keys() & one.keys()).update(told)
    write_catalogue(tmp_path / "run1.zarr", entries)
    with pytest.raises(DamagedError, match="the catalogue of rank 0 is damaged"):
        RankReader(LocalLocation(tmp_path / "run1.zarr"), 0)
