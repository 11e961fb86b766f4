"""A series as a dask array: the stored chunks, read when they are computed, here or elsewhere."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
import xarray
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anchorlib
from anchorlib.errors import (
    DamagedError,
    MissingExtraError,
    OptionError,
    RaggedError,
    UnsupportedError,
    ValuesNotKeptError,
)
from anchorlib.reading import Run
from anchorlib.store import RunReader, find_run
from tests.cli.made import make_run, record
from tests.seeds import examples


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    place = tmp_path_factory.mktemp("store")
    wide = np.random.default_rng(0).normal(size=(30, 40, 50)).astype("f4")
    make_run(
        place,
        [record("w", raw=one, step=step) for step, one in enumerate(wide)]
        + [
            record("h", raw=np.full((2, 3), step, "<u2"), dtype="bfloat16", step=step)
            for step in range(5)
        ]
        + [record("r", raw=np.zeros(n, "f4"), step=n) for n in (1, 2)]
        + [record("lost", raw=None, dropped=wide[0])],
    )
    return place


CHUNKS = st.one_of(
    st.sampled_from(["auto", -1, {}, {"d1": 7}, "1KiB"]),
    st.integers(1, 60),
    st.fixed_dictionaries({"record": st.integers(1, 40)}),
)


@pytest.mark.slow
@settings(max_examples=examples(10), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunks=CHUNKS)
def test_whatever_the_chunks_the_values_are_those_that_are_read_at_once(store, chunks):
    series = anchorlib.open_run("run1", store)["w@grad"].where(steps=range(3, 28, 2))
    lazy = series.to_xarray(chunks=chunks)
    assert lazy.chunks is not None
    whole = series.to_xarray()
    assert lazy.compute(scheduler="synchronous").identical(whole)
    for part in (3, slice(2, 9, 3), [4, 1, 1], slice(5, 5)), (-1, 0), (slice(None), [7, 2], 3):
        for index in part if part[0] == 3 else [part]:
            assert lazy[index].compute(scheduler="synchronous").identical(whole[index])


def test_narrow_floats_are_widened_as_they_are_read(store):
    series = anchorlib.open_run("run1", store)["h@grad"]
    lazy = series.to_xarray(chunks={"record": 2})
    assert lazy.dtype == np.float32
    assert lazy.chunks == ((2, 2, 1), (2,), (3,))
    assert lazy.compute(scheduler="synchronous").identical(series.to_xarray())


def test_without_more_the_chunks_are_those_of_the_store(tmp_path):
    large = np.zeros((600, 1000), "f4")
    make_run(tmp_path, [record("a", raw=large, step=step) for step in range(3)])
    run = anchorlib.open_run("run1", tmp_path)
    stored = xarray.open_zarr(
        run.zarr(), group="rank0/tensors/a/grad", consolidated=False, chunks={}
    )
    assert (
        run["a@grad"].to_xarray(chunks={}).chunks
        == stored["value"].chunks
        == ((1, 1, 1), (600,), (1000,))
    )


@pytest.mark.slow
def test_another_process_opens_the_run_itself(store):
    run = anchorlib.open_run("run1", store)
    lazy = pickle.loads(pickle.dumps(run["w@grad"].to_xarray(chunks={"record": 7})))
    assert float(lazy.sum().compute(scheduler="processes", num_workers=1)) == float(
        run["w@grad"].to_xarray(chunks={"record": 7}).sum().compute(scheduler="synchronous")
    )
    copied = pickle.loads(pickle.dumps(run.zarr()))
    group = {"group": "rank0/tensors/w/grad", "consolidated": False}
    one, two = (xarray.open_zarr(view, **group, chunks=None) for view in (run.zarr(), copied))
    assert one.identical(two)


@pytest.mark.parametrize("chunks", [{"x": 1}, "banana", {"record": "q"}, (1, 2), object()])
def test_chunks_that_cannot_be_are_one_line(store, chunks):
    with pytest.raises(OptionError, match=r"^chunks=.*") as caught:
        anchorlib.open_run("run1", store)["w@grad"].to_xarray(chunks=chunks)
    assert "\n" not in str(caught.value)


def test_what_no_array_can_hold_is_said_before_anything_is_read(store):
    run = anchorlib.open_run("run1", store)
    with pytest.raises(RaggedError):
        run["r@grad"].to_xarray(chunks={})
    with pytest.raises(ValuesNotKeptError):
        run["lost@grad"].to_xarray(chunks={})
    found = find_run("run1", store)
    with pytest.raises(UnsupportedError, match="was not opened by name"):
        Run(RunReader(found.location, found.name))["w@grad"].to_xarray(chunks={})


def test_damage_is_found_when_the_chunk_is_computed(tmp_path):
    make_run(tmp_path, [record("a", raw=np.ones(5, "f4"), step=step) for step in range(3)])
    lazy = anchorlib.open_run("run1", tmp_path)["a@grad"].to_xarray(chunks={"record": 1})
    chunk = tmp_path / "run1.zarr/rank0/forms/float32_5/value/c.0.0"
    raw = bytearray(chunk.read_bytes())
    raw[20] ^= 1
    chunk.write_bytes(raw)
    assert lazy[0].compute(scheduler="synchronous").values.tolist() == [1.0] * 5
    with pytest.raises(DamagedError, match="step 1"):
        lazy[1].compute(scheduler="synchronous")


def test_without_dask_it_says_what_to_install(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "dask.array", None)
    with pytest.raises(MissingExtraError, match=r"anchorlib\[dask\]"):
        anchorlib.open_run("run1", store)["w@grad"].to_xarray(chunks={})
