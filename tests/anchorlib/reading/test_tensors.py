"""`Run.zarr()`: every tensor as an array of its own, for zarr and xarray, of runs of any format."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
import xarray
import zarr

from anchorlib.dtypes import DTYPES
from anchorlib.reading import Run, open_run
from anchorlib.store import Writer
from tests.anchorlib.store.records import filled, floats, record, written
from tests.writing import put

FORMAT1 = Path(__file__).parents[2] / "fixtures" / "format1.tar.xz"


def groups_of(run: Run) -> dict[tuple[int, str, str, str], zarr.Group]:
    """The group of each series, by rank, name, kind and mode."""
    found = {}
    for path, node in zarr.open_group(run.zarr(), mode="r").members(None):
        about = node.attrs.get("anchor", {})
        if isinstance(node, zarr.Group) and "mode" in about:
            rank = int(path.split("/")[0].removeprefix("rank"))
            found[rank, about["name"], about["kind"], about["mode"]] = node
    return found


def assert_shows(run: Run) -> None:
    """Every kept record of every series is where its tensor is, with its coordinates."""
    groups = groups_of(run)
    for info in run.tensors():
        for rank in info.ranks:
            series = run.series(info.name, info.kind, rank=rank, mode=info.mode)
            group = groups.pop((rank, info.name, info.kind, info.mode))
            wanted: dict[tuple[str, tuple[int, ...]], list[tuple[tuple[int, ...], bytes]]] = {}
            for one in series.records():
                if one.raw is not None:
                    place = (one.step, one.pass_index, one.call)
                    wanted.setdefault((one.dtype, one.shape), []).append((place, one.raw.tobytes()))
            for index, ((dtype, shape), records) in enumerate(wanted.items()):
                suffix = f"_{index}" if index else ""
                array = group[f"value{suffix}"]
                assert array.attrs["anchor"]["dtype"] == dtype
                assert array.shape == (len(records), *shape)
                assert array[...].tobytes() == b"".join(raw for _, raw in records)
                labels = [group[f"{name}{suffix}"][:] for name in ("step", "pass_index", "call")]
                assert list(zip(*labels, strict=True)) == [place for place, _ in records]
            assert len(list(group.arrays())) == 4 * len(wanted)
    assert not groups


@pytest.mark.slow
def test_every_tensor_of_a_run_of_format_1_has_an_array_in_the_view(tmp_path: Path) -> None:
    with tarfile.open(FORMAT1) as archive:
        archive.extractall(tmp_path, filter="data")
    assert_shows(open_run("run1", tmp_path))


@pytest.mark.slow
def test_every_dtype_and_shape_has_an_array_in_the_view(tmp_path: Path) -> None:
    shapes = [(3, 5), (), (0, 4), (70_000,)]
    every = [
        record(f"{dtype}/{n % 3}", step, filled(dtype, shape, step), dtype=dtype, call=n)
        for step in range(3)
        for dtype in DTYPES
        for n, shape in enumerate(shapes)
    ]
    every += [record("ragged", n, filled("int8", (n,), n), dtype="int8") for n in range(30)]
    every += [record("bare", n, floats(n), values=n > 3, mode="all") for n in range(6)]
    every += [record("bare", n, floats(n), mode="summary") for n in range(6)]
    written(tmp_path, every)
    assert_shows(open_run("run1", tmp_path))


@pytest.mark.parametrize(
    "name", ["fc1.weight", "..", "a/b", "\x1b[31m", "c", "zarr.json", "é" * 500]
)
def test_any_name_is_one_group_and_names_that_differ_in_case_are_two(
    name: str, tmp_path: Path
) -> None:
    written(tmp_path, [record(n, 0, floats(1), order=i) for i, n in enumerate([name, "A", "a"])])
    run = open_run("run1", tmp_path)
    assert_shows(run)
    folders = [key for key, _ in zarr.open_group(run.zarr(), mode="r")["rank0/tensors"].groups()]
    assert len({folder.casefold() for folder in folders}) == 3


def test_xarray_opens_a_tensor_of_the_view_with_its_coordinates(tmp_path: Path) -> None:
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, [record("fc1", s, floats(s, 1), pass_index=s % 2, call=s) for s in range(5)])
        run = open_run("run1", tmp_path)  # live, and nothing was published
        store = run.zarr()
        group = "rank0/tensors/fc1/grad"
        data = xarray.open_zarr(store, group=group, consolidated=False, chunks=None)
        put(writer, [record("fc1", 5, floats(5, 1), order=5)])
        assert data["value"].dims == ("record", "d0")
        assert set(data.coords) == {"step", "pass_index", "call"}
        assert data["value"].values.tolist() == [[s, 1.0] for s in range(5)]
        assert data["value"].sel(record=data["step"].load() == 2).values.tolist() == [[2.0, 1.0]]
        assert zarr.open_group(run.zarr(), mode="r")["rank0/tensors/fc1/grad/value"].shape == (6, 2)
        with pytest.raises(ValueError, match="read-only"):
            zarr.open_group(store, mode="r+")["rank0/tensors/fc1/grad/value"][0] = 1


@pytest.mark.slow
def test_the_view_reads_of_a_form_what_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small tensor among many of its shape costs its own bytes, not theirs."""
    import os

    every = [
        record(f"t{n}", step, np.full((64, 16), step, "<f4"), order=400 * step + n)
        for step in range(3)
        for n in range(400)
    ]
    written(tmp_path, every)
    run = open_run("run1", tmp_path)
    array = zarr.open_group(run.zarr(), mode="r")["rank0/tensors/t7/grad/value"]
    sizes, real = [], os.preadv

    def preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        sizes.append(sum(map(len, buffers)))
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    assert array[:, 0, 0].tolist() == [0.0, 1.0, 2.0]
    assert sizes.count(4096) == 3
    assert sum(sizes) < 100 * 4096  # columns of the table are read too; all values are 1,200
