"""Sealed objects are read in few requests, by any zarr reader, and never wrong where damaged."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import xarray
import zarr
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.errors import DamagedError, OptionError, RunExistsError, RunNotFoundError, StoreError
from anchorlib.reading import Run
from anchorlib.store import (
    FolderTarget,
    LocalLocation,
    RankReader,
    RunReader,
    Writer,
    read_index,
    read_sealed,
    seal,
)
from anchorlib.store.seal.chunk_grid import CHUNK_BYTES, SHARD_BYTES, Grid
from anchorlib.upkeep.mending import Examined
from tests.anchorlib.store.records import filled, floats, record, written
from tests.anchorlib.store.sealing import assert_same_run, damages, opened, sealed_run
from tests.writing import put

LARGE = (3, 6 << 20)  # float32: a record is cut into chunks, and lies in more than one shard
STEPS = 3


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed run of tensors of all sizes: of shared forms, of flat ones, larger than a shard."""
    store = tmp_path_factory.mktemp("live")
    shapes = {"w": (512, 600), "b": (512,), "loss": (), "empty": (0, 3)}
    shapes |= {f"flat{size}": (size, 7) for size in range(1, 20)}
    with Writer.open(store, "run1", 0) as writer:
        for step in range(STEPS):
            put(
                writer,
                [
                    record(name, step, filled("float32", shape, step), order=100 * step + place)
                    for place, (name, shape) in enumerate(shapes.items())
                ],
            )
        put(writer, [record("large", STEPS, filled("float32", LARGE), order=1000)])
    return store / "run1.zarr"


@pytest.fixture(scope="module")
def sealed(live: Path) -> Path:
    """The same, sealed."""
    into = live.parent / "sealed.zarr"
    sealed_run(live, into)
    return into


class Counting:
    """A location that counts what is asked of it, object by object."""

    def __init__(self, root: Path) -> None:
        self._inner = LocalLocation(root)
        self.gets: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
        self.gets[key] += 1
        data = self._inner.get(key, start, length)
        self.bytes[key] += len(data or b"")
        return data

    def list(self, prefix: str) -> list[str]:
        return self._inner.list(prefix)


def objects(run: Path) -> Iterator[Path]:
    """The objects that hold chunks, and those that readers begin with."""
    for path in sorted((run / "rank0").rglob("*")):
        if path.is_file() and path.name != "zarr.json":
            yield path


def answers(run: Path) -> object:
    """All that a run says."""
    found = opened(run)
    values = {
        (one.name, one.kind): [r.array.tobytes() for r in found[f"{one.name}@{one.kind}"]]
        for one in found.tensors()
    }
    return values, found.tensors(), found.histogram("*@grad"), found.gaps()


@pytest.mark.long
def test_tensors_of_all_sizes_are_the_same(live: Path, sealed: Path) -> None:
    assert_same_run(live, sealed)
    assert damages(sealed) == []


@pytest.mark.slow
def test_a_tensor_is_at_most_four_requests_a_shard(sealed: Path) -> None:
    for selector in ("w@grad", "flat3@grad", "large@grad"):
        location = Counting(sealed)
        run = Run(RunReader(location, "run1"))
        list(run[selector].records())
        assert {k: n for k, n in location.gets.items() if "/c/" in k and n > 4} == {}


@pytest.mark.slow
def test_whoever_goes_through_a_shard_has_the_rest_of_it_with_the_second_request(
    sealed: Path,
) -> None:
    location = Counting(sealed)
    reader = RankReader(location, 0)
    row = reader.committed - 1
    blocks = reader.raw_blocks(row, 1 << 20)
    first = next(blocks)
    values = {key: n for key, n in location.bytes.items() if "value/c" in key}
    assert sum(values.values()) < 4 << 20  # of one block no shard is read
    assert len([first, *blocks]) == LARGE[0] * LARGE[1] * 4 >> 20
    gets = {key: n for key, n in location.gets.items() if "value/c" in key}
    assert len(gets) == 2
    assert max(gets.values()) <= 3  # its index, one chunk, and all that follows
    for key in gets:
        assert location.bytes[key] < (sealed / key).stat().st_size + (4 << 10)  # nothing twice


def flip(path: Path, at: int) -> None:
    """Changes one bit of a file; a second time, it is as it was."""
    with path.open("r+b") as file:
        file.seek(at, 0 if at >= 0 else 2)
        held = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([held[0] ^ 1]))


@pytest.mark.slow
def test_what_does_not_fit_its_digest_is_not_sealed(live: Path, tmp_path: Path) -> None:
    large = tmp_path / "large"
    with Writer.open(large, "run1", 0) as writer:  # a form of its own, in more than one shard
        put(writer, [record("large", 0, filled("float32", LARGE), order=0)])
    places = [
        (live, "forms/flat_float32/value/c.0", 0),
        (live, "forms/float32_512x600/value/c.0.0.0", 0),
        (large / "run1.zarr", "forms/float32_3x6291456/value/c.0.0.0", 0),
        (large / "run1.zarr", "forms/float32_3x6291456/value/c.0.0.0", -1),
    ]
    for number, (run, file, at) in enumerate(places):
        flip(run / "rank0" / file, at)
        into = tmp_path / f"sealed{number}.zarr"
        with pytest.raises(DamagedError, match="do not fit their digest"):
            sealed_run(run, into)
        assert read_sealed(LocalLocation(into), 0) is None
        flip(run / "rank0" / file, at)


def test_an_index_says_what_reading_all_rows_would(live: Path, sealed: Path) -> None:
    location = Counting(sealed)
    index, run = read_index(location, 0), opened(live)
    assert index is not None
    assert sum(location.gets.values()) == 1
    told = {(one.name, one.kind, one.mode): one for one in index.series}
    for info in run.tensors():
        one = told[info.name, info.kind, info.mode]
        assert (one.records, one.bytes) == (info.records, info.bytes)
        assert (one.first_step, one.last_step) == (info.first_step, info.last_step)
        assert one.histogram == run.histogram(f"{info.name}@{info.kind}")
        lows = run[f"{info.name}@{info.kind}"].columns["min"]
        assert one.minimum == (lows.min() if np.isfinite(lows.min()) else None)
    assert [one.name for one in index.series] == [info.name for info in run.tensors()]
    assert (index.bytes, list(index.steps)) == (run.bytes, run.steps)


def repeated(nbytes: int, told: int | None) -> bytes:
    """A frame of zstd in which one byte stands for so many, and that tells how many it holds."""
    size = b"\x00\x58" if told is None else b"\xe0" + told.to_bytes(8, "little")
    count = nbytes >> 17  # blocks of 128 KiB
    blocks = [((1 << 20) | 2 | (at == count - 1)).to_bytes(3, "little") for at in range(count)]
    return b"\x28\xb5\x2f\xfd" + size + b"x".join(blocks) + b"x"


@pytest.mark.parametrize("told", [320 << 20, (1 << 64) - 1, 5, None])
def test_an_index_that_grows_beyond_all_bounds_is_refused_before_it_does(
    tmp_path: Path, told: int | None
) -> None:
    (tmp_path / "rank0").mkdir()
    hostile = tmp_path / "rank0" / "index.json.zst"
    hostile.write_bytes(repeated(320 << 20, told))
    assert hostile.stat().st_size < 1 << 14
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError, match=r"rank0/index\.json\.zst is damaged: it "):
            read_index(LocalLocation(tmp_path), 0)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_any_zarr_reader_opens_the_arrays(live: Path, sealed: Path) -> None:
    reader = RankReader(LocalLocation(live), 0)
    manifest = read_sealed(LocalLocation(sealed), 0)
    assert manifest is not None
    for key in manifest.arrays:
        own = zarr.open_array(sealed / "rank0" / key, mode="r")[:]
        spec = {"driver": "zarr3", "kvstore": f"file://{sealed}/rank0/{key}/"}
        other = tensorstore.open(spec, open=True, read=True).result().read().result()
        assert own.shape == other.shape
        assert np.ascontiguousarray(own).tobytes() == other.astype(own.dtype).tobytes()
    form = xarray.open_zarr(sealed / "rank0/forms/float32_512x600", consolidated=False)
    about = json.loads((sealed / "rank0/forms/float32_512x600/zarr.json").read_bytes())
    (series,) = about["attributes"]["anchor"]["series"].values()
    first, last = series["records"]
    rows = np.flatnonzero(reader.column("form") == reader.cell("form", 0))
    assert form["value"].values[first:last].tobytes() == reader.stack(rows).tobytes()


@pytest.mark.slow
def test_sealing_again_gives_the_same_bytes_and_writes_nothing(live: Path, tmp_path: Path) -> None:
    location = LocalLocation(live)
    first = seal(location, RankReader(location, 0), FolderTarget(tmp_path, fsync=False))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert seal(location, RankReader(location, 0), FolderTarget(tmp_path, fsync=False)) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_objects_are_as_few_as_promised(live: Path, sealed: Path) -> None:
    reader = RankReader(LocalLocation(live), 0)
    found = sum(path.is_file() for path in (sealed / "rank0").rglob("*"))
    nbytes = reader.stored_bytes(np.arange(reader.committed))
    assert found <= 60 + 6 * len(reader.catalogue.forms) + nbytes / (32 << 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        *("missing", "truncated", "flipped"),
        *(pytest.param(how, marks=pytest.mark.long) for how in ("emptied", "longer")),
    ],
)
def test_a_damaged_object_is_named_and_no_answer_is_wrong(tmp_path: Path, how: str) -> None:
    records = [record("x", step, floats(step, 1, 2, 3)) for step in range(4)]
    records += [record("y", 5, filled("float32", (1, size)), order=5 + size) for size in range(20)]
    sealed = tmp_path / "sealed.zarr"
    sealed_run(written(tmp_path, records), sealed)
    whole = answers(sealed)
    for path in objects(sealed):
        data, key = path.read_bytes(), path.relative_to(sealed).as_posix()
        spoil(path, data, how)
        assert said(answers, sealed) in (whole, key)
        told = said(damages, sealed)
        assert told == key or (isinstance(told, list) and any(key in one for one in told))
        path.write_bytes(data)
    assert answers(sealed) == whole


@pytest.mark.parametrize("field", ["chunk", "shard", "shape"])
def test_arrays_larger_than_any_are_refused_before_there_is_room_for_them(
    tmp_path: Path, field: str
) -> None:
    run, sealed = tmp_path / "sealed.zarr", tmp_path / "sealed.zarr" / "rank0" / "sealed.json"
    sealed_run(
        written(tmp_path, [record("x", step, floats(step, 1, 2, 3)) for step in range(4)]), run
    )
    told = read_sealed(LocalLocation(run), 0)
    assert told is not None
    for key, array in told.arrays.items():
        if field == "shape" and "columns" not in array:
            continue
        large = [*array[field][:-1], 1 << 32]
        shape = {field: large}
        if field == "chunk":
            shape["shard"] = large
        arrays = {**told.arrays, key: {**array, **shape}}
        sealed.write_bytes(replace(told, arrays=arrays).document)
        with pytest.raises(DamagedError, match=r"rank0/sealed\.json is damaged: (its|one)"):
            answers(run)
    sealed.write_bytes(told.document)
    assert answers(run)


def said(ask: Callable[[Path], object], run: Path) -> object:
    """The answer, or which object an error names."""
    try:
        return ask(run)
    except DamagedError as error:
        found = re.search(r"rank0/[^ ]+?(?= |:|$)", str(error))
        return found and found[0]
    except RunNotFoundError:
        return "rank0/sealed.json"


def spoil(path: Path, data: bytes, how: str) -> None:
    """Damages one object."""
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    spoilt = {"truncated": data[:-3], "emptied": b"", "flipped": flipped, "longer": data + b"x"}
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(spoilt[how])


def test_a_rank_that_was_not_sealed_to_its_end_does_not_exist(tmp_path: Path) -> None:
    for rank in (0, 1):
        written(tmp_path, [record("x", 0, floats(rank))], rank=rank)
    sealed = tmp_path / "sealed.zarr"
    sealed_run(tmp_path / "run1.zarr", sealed)
    (sealed / "rank1/sealed.json").unlink()
    assert opened(sealed).ranks == [0]
    (sealed / "rank0/sealed.json").unlink()
    with pytest.raises(RunNotFoundError, match="was sealed to its end"):
        opened(sealed)


def test_what_cannot_be_sealed_is_refused(tmp_path: Path) -> None:
    target = FolderTarget(tmp_path / "sealed.zarr", fsync=False)
    run = LocalLocation(written(tmp_path, [record("x", 0, floats(1))]))
    with pytest.raises(OptionError, match="into the run itself"):
        seal(run, RankReader(run, 0), FolderTarget(run.root))
    seal(run, RankReader(run, 0), target)
    sealed = LocalLocation(target.root)
    with pytest.raises(StoreError, match="sealed already"):
        seal(sealed, RankReader(sealed, 0), FolderTarget(tmp_path / "again.zarr"))
    with Writer.open(tmp_path, "open", 0) as writer:
        put(writer, [record("x", 0, floats(1))])
        live = LocalLocation(tmp_path / "open.zarr")
        with pytest.raises(StoreError, match="was not closed"):
            seal(live, RankReader(live, 0), target)
    shapes = [record(f"y{size}", 0, filled("float32", (size,)), order=size) for size in range(12)]
    flat = LocalLocation(written(tmp_path, shapes, run="flat"))
    value = flat.root / "rank0/forms/flat_float32/value/c.0"
    value.write_bytes(bytes([value.read_bytes()[0] ^ 1]) + value.read_bytes()[1:])
    with pytest.raises(DamagedError, match="y8@grad at step 0"):
        seal(flat, RankReader(flat, 0), FolderTarget(tmp_path / "other.zarr", fsync=False))
    value = next((run.root / "rank0/forms").glob("*/value/c.0*"))
    value.write_bytes(b"\1" + value.read_bytes()[1:])
    with pytest.raises(DamagedError, match="x@grad at step 0"):
        seal(run, RankReader(run, 0), FolderTarget(tmp_path / "other.zarr", fsync=False))
    assert read_sealed(LocalLocation(tmp_path / "other.zarr"), 0) is None


def test_a_sealed_rank_is_never_written_and_a_repair_keeps_all_of_it(tmp_path: Path) -> None:
    run = written(tmp_path, [record("x", step, floats(step)) for step in range(3)])
    store = tmp_path / "sealed"
    (store / "run1.zarr").mkdir(parents=True)
    sealed_run(run, store / "run1.zarr")
    before = {path: path.read_bytes() for path in objects(store / "run1.zarr")}
    with pytest.raises(RunExistsError, match="is sealed, and takes no more records"):
        Writer.open(store, "run1", 0, resume=True)
    examined = Examined.of(LocalLocation(store / "run1.zarr"), "run1", 0)
    assert examined.sound.all()
    assert examined.kept.all()
    assert examined.problems == []
    assert {path: path.read_bytes() for path in objects(store / "run1.zarr")} == before


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=4).map(tuple),
    st.sampled_from([1, 2, 4, 8, 16]),
)
def test_chunks_and_shards_cut_every_array_in_order(shape: tuple[int, ...], itemsize: int) -> None:
    grid = Grid.of(shape, itemsize)
    grid.check(itemsize)
    assert grid.chunk_elements * itemsize <= CHUNK_BYTES
    assert np.prod(grid.shard, dtype=np.int64) * itemsize <= SHARD_BYTES
    if not grid.chunks:
        return
    last = grid.chunks - 1
    size = int(np.prod(shape, dtype=np.int64))
    for chunk in {0, last // 3, last}:
        start, stop = grid.extent(chunk)
        assert [*grid.pieces(start, stop)] == [(chunk, 0, stop - start)]
        where = np.unravel_index(start, shape)
        name, place = grid.place(chunk)
        shard = [int(one) for one in name.split("/")[1:]]
        assert shard == [int(at) // n for at, n in zip(where, grid.shard, strict=True)]
        inside = [int(at) % n // k for at, n, k in zip(where, grid.shard, grid.chunk, strict=True)]
        per = [n // k for n, k in zip(grid.shard, grid.chunk, strict=True)]
        assert place == np.ravel_multi_index(inside, per)
    assert grid.extent(last)[1] == size
