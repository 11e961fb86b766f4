"""Contract, section 2: what a recorded run gives back, and how it lies on disk."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray
import xxhash
import zarr
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import anchorlib
from anchor_server import Collector
from anchorlib import All, Sum, Summary
from tests.contract.runs import Net, batches, listed, places, recorded

COLUMNS = ["step", "pass_index", "call", "phase", "attempt", "order", "time_ns", "count", "digest"]
COLUMNS += ["zero", "nan", "inf", "subnormal", "min", "max", "sum", "l2", "flags", "scale"]
TINY = 2.0**-140  # subnormal in float32


class Trained:
    """Four steps of two micro-batches of a small net on two ranks, and what torch saw of them."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.hidden: list[torch.Tensor] = []
        self.gradients: list[torch.Tensor] = []
        for rank in (0, 1):
            recorded(store, lambda session, rank=rank: self.train(session, rank), rank=rank)
        self.run = anchorlib.open_run("run1", store)

    def train(self, session: anchorlib.Session, rank: int) -> None:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=2.0**-12)
        session.watch(net, tensors=["fc1@value", "fc2.bias@grad"], optimizer=optimizer)
        if rank == 1:
            session.watch(net, tensors=["fc2@value"], mode=[All, Sum])
        made = batches(8, seed=rank)
        for _ in range(4):
            optimizer.zero_grad()
            for _ in range(2):
                x = next(made)
                if rank == 0:
                    hidden = nn.functional.linear(x, net.fc1.weight, net.fc1.bias)
                    self.hidden.append(hidden.detach())
                net(x).pow(2).sum().backward()
            if rank == 0:
                self.gradients.append(net.fc2.bias.grad.clone())
            optimizer.step()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("reading") / "anchors")


def anchor_all(values: Iterable[torch.Tensor], name: str = "x") -> Any:
    """A body that anchors each value, in a step of its own."""

    def body(session: anchorlib.Session) -> None:
        for value in values:
            anchorlib.anchor(value, name)
            session.step()

    return body


# -- open_run


@pytest.mark.slow
def test_a_run_is_opened_by_name_by_path_and_by_url(trained, monkeypatch):
    expected = listed(trained.run)
    path = trained.store / "run1.zarr"
    assert listed(anchorlib.open_run("run1", str(trained.store))) == expected
    assert listed(anchorlib.open_run(path)) == listed(anchorlib.open_run(str(path))) == expected
    monkeypatch.setenv("ANCHOR_STORE", str(trained.store))
    assert listed(anchorlib.open_run("run1")) == expected
    with Collector(trained.store, bind="127.0.0.1:0") as collector:
        url = f"grpc://{collector.address}"
        there = anchorlib.open_run(f"{url}/run1")
        assert listed(there) == listed(anchorlib.open_run("run1", url)) == expected
        gradients = there.series("fc2.bias", "grad", rank=0)
        assert gradients.values().tolist() == torch.stack(trained.gradients).tolist()


def test_a_live_run_is_read_while_it_is_recorded(store):
    with anchorlib.start("run1", store=store) as session:
        session.flush()
        run = anchorlib.open_run("run1", store)
        assert run.tensors() == []
        for n in range(3):
            anchorlib.anchor(torch.tensor([float(n)]), "x")
            session.flush()
            assert run["x"].values()[:, 0].tolist() == list(range(n + 1))


def test_an_unknown_run_is_a_file_not_found_error_with_did_you_mean(trained):
    with pytest.raises(anchorlib.RunNotFoundError, match="did you mean 'run1'") as caught:
        anchorlib.open_run("run2", trained.store)
    assert isinstance(caught.value, FileNotFoundError)


# -- tensors


def test_tensors_are_told_with_all_their_fields_in_execution_order(trained):
    infos = {(info.name, info.mode): info for info in trained.run.tensors()}
    assert next(iter(infos)) == ("fc1", "all")
    assert set(infos) == {("fc1", "all"), ("fc2", "all"), ("fc2", "sum"), ("fc2.bias", "all")}
    fc1 = infos["fc1", "all"]
    assert (fc1.kind, fc1.dtype, fc1.shape) == ("value", "float32", (4, 3))
    assert (fc1.ranks, fc1.records) == ((0, 1), 16)
    assert (fc1.first_step, fc1.last_step, fc1.bytes) == (0, 3, 16 * 4 * 3 * 4)
    assert infos["fc2", "sum"].dtype == "float64"
    assert infos["fc2", "sum"].ranks == (1,)


def test_one_ranks_tensors_come_in_execution_order(store):
    w = torch.ones(2, requires_grad=True)

    def body(_: object) -> None:
        for name in ("b", "a", "c"):
            h = anchorlib.anchor(w * 2, name)
        h.sum().backward()

    run = recorded(store, body)
    assert listed(run) == ["b@value", "a@value", "c@value", "c@grad"]
    assert [info.name for info in run.tensors("c@value", "b")] == ["b", "c"]


# -- one series


def test_run_of_a_selector_is_the_one_series_that_it_names(trained):
    with pytest.raises(anchorlib.AmbiguousTensorError, match="rank=1"):
        trained.run["fc2.bias@grad"]
    series = trained.run.series("fc2.bias", "grad", rank=0)
    assert (series.name, series.kind, series.rank, series.mode) == ("fc2.bias", "grad", 0, "all")
    sums = trained.run.series("fc2", rank=1, mode=Sum)
    every = trained.run.series("fc2", rank=1, mode=All).values().astype(np.float64)
    assert sums.values().tolist() == every.reshape(4, 2, 4, 1).sum(1).tolist()
    with pytest.raises(anchorlib.AmbiguousTensorError, match="mode="):
        trained.run["fc2@value"]


def test_values_have_a_record_for_each_row(trained):
    series = trained.run.series("fc1", rank=0)
    values = series.values()
    assert values.shape == (len(series), 4, 3) == (8, 4, 3)
    assert np.array_equal(values, torch.stack(trained.hidden).numpy())


NARROW = [
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_bf16_and_fp8_are_given_as_float32(store, dtype):
    # Every pattern of a byte; of bfloat16 a stride through all of them.
    if dtype is torch.bfloat16:
        bits = torch.arange(-32768, 32768, 37, dtype=torch.int32).to(torch.int16)
    else:
        bits = torch.arange(-128, 128, dtype=torch.int16).to(torch.int8)
    x = bits.view(dtype)
    series = recorded(store, anchor_all([x]))["x"]
    values = series.values()
    assert values.dtype == np.float32
    assert np.array_equal(values[0], x.float().numpy(), equal_nan=True)
    assert series.to_torch().dtype == dtype
    assert torch.equal(series.to_torch()[0].view(bits.dtype), bits)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool]
)
def test_every_other_dtype_is_given_as_it_is(store, dtype):
    x = torch.tensor([0, 1, 2, 100]).to(dtype)
    series = recorded(store, anchor_all([x, x]))["x"]
    assert series.values().dtype == x.numpy().dtype
    assert torch.equal(series.to_torch(), torch.stack([x, x]))


def test_shapes_that_differ_are_a_ragged_error_and_come_one_by_one(store):
    given = [torch.ones(2, 3), torch.zeros(3, 3), torch.ones(0)]
    series = recorded(store, anchor_all(given))["x"]
    with pytest.raises(anchorlib.RaggedError) as caught:
        series.values()
    assert isinstance(caught.value, ValueError)
    assert [r.array.tolist() for r in series.records()] == [x.tolist() for x in given]


def test_values_of_a_summary_are_a_values_not_kept_error(store):
    series = recorded(store, anchor_all([torch.ones(2)]), mode=Summary)["x"]
    for ask in (series.values, series.to_torch, lambda: series.at(step=0).array):
        with pytest.raises(anchorlib.ValuesNotKeptError) as caught:
            ask()
        assert isinstance(caught.value, LookupError)


def test_at_gives_one_record(trained):
    series = trained.run.series("fc1", rank=0)
    assert np.array_equal(series.at(step=3, pass_index=1, call=0).array, trained.hidden[7].numpy())
    assert np.array_equal(series.at(step=2).array, trained.hidden[4].numpy())
    with pytest.raises(anchorlib.UnknownTensorError):
        series.at(step=3, pass_index=2)


def test_a_record_has_its_fields(store):
    before = time.time_ns()
    x = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)

    def body(session: anchorlib.Session) -> None:
        anchorlib.anchor(torch.ones(1), "other")
        with session.phase("probe"):
            anchorlib.anchor(x, "x")

    run = recorded(store, body, rank=2, first_step=6)
    (record,) = run["x"].records()
    assert (record.name, record.kind, record.rank) == ("x", "value", 2)
    assert record.coordinates == anchorlib.Coordinates(6, 0, 0, "probe", 0)
    assert (record.order, record.count, record.dtype) == (1, 1, "bfloat16")
    assert before <= record.time_ns <= time.time_ns()
    assert record.array.tolist() == [1.0, 2.0]


def test_to_torch_and_to_xarray_hold_the_same_values(trained):
    series = trained.run.series("fc1", rank=0)
    assert torch.equal(series.to_torch(), torch.stack(trained.hidden))
    array = series.to_xarray()
    assert np.array_equal(array.values, series.values())
    assert array["step"].values.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert array["pass_index"].values.tolist() == [0, 1] * 4
    assert array.dims[0] == "record"


# -- columns


def test_columns_are_these_with_one_entry_per_record(trained):
    series = trained.run.series("fc1", rank=0)
    assert list(series.columns) == COLUMNS
    assert {len(series.columns[name]) for name in COLUMNS} == {len(series)}


FLOATS = st.lists(
    st.one_of(
        st.floats(width=32),
        st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, TINY, -TINY, 2.0**-126]),
    ),
    max_size=12,
)


def exponents(values: Iterable[float]) -> dict[int, int]:
    """How many lie in 2^e <= |x| < 2^(e+1), for each e; by frexp, which is exact."""
    binned = (math.frexp(x)[1] - 1 for x in values if math.isfinite(x) and x != 0)
    return dict(Counter(binned))


def test_min_max_sum_and_l2_are_over_finite_elements_and_counts_are_of_all(store):
    given = [
        [1.5, -4.0, 0.0, math.nan, 2.0**-130],
        [math.inf, -math.inf, 3.0, -0.0],
        [math.nan, math.inf],
        [],
        [3e38, 3e38, -3e38],
    ]
    columns = recorded(store, anchor_all(torch.tensor(one) for one in given))["x"].columns
    for row, one in enumerate(np.array(v, np.float32).astype(float).tolist() for v in given):
        finite = [x for x in one if math.isfinite(x)]
        figures = [columns[name][row] for name in ("min", "max", "sum", "l2")]
        if finite:
            assert figures[:2] == [min(finite), max(finite)]
            assert figures[2] == pytest.approx(math.fsum(finite), rel=1e-12)
            assert figures[3] == pytest.approx(math.hypot(*finite), rel=1e-12)
        else:
            assert all(map(math.isnan, figures))
        counts = [int(columns[name][row]) for name in ("zero", "nan", "inf", "subnormal")]
        assert counts == [
            sum(x == 0 for x in one),
            sum(map(math.isnan, one)),
            sum(map(math.isinf, one)),
            sum(0 < abs(x) < 2.0**-126 for x in one),
        ]


def test_digest_is_xxh3_128_of_the_bits_as_32_hex_digits(store):
    given = [torch.randn(3, 4), torch.randn(3, 4).bfloat16(), torch.arange(5), torch.ones(0)]
    columns = recorded(store, anchor_all(given))["x"].columns
    for digest, x in zip(columns["digest"].tolist(), given, strict=True):
        storage = x.view(torch.uint8).numpy() if x.numel() else x.numpy()
        assert digest == xxhash.xxh3_128_hexdigest(storage.tobytes())
        assert len(digest) == 32


def test_count_and_time_are_columns_too(store):
    before = time.time_ns()
    series = recorded(store, anchor_all([torch.ones(1)] * 5), mode=Sum(2))["x"]
    assert series.columns["count"].tolist() == [2, 2, 1]
    times = series.columns["time_ns"].tolist()
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= time.time_ns()


def test_readers_see_the_last_attempt_of_a_coordinate_and_attempts_shows_all(store):
    for attempt, (first, steps) in enumerate([(0, 4), (2, 3), (4, 2)]):
        value = torch.tensor([float(attempt)])
        recorded(store, anchor_all([value] * steps), resume=attempt > 0, first_step=first)
    run = anchorlib.open_run("run1", store)
    assert run["x"].columns["step"].tolist() == [0, 1, 2, 3, 4, 5]
    assert run["x"].columns["attempt"].tolist() == [0, 0, 1, 1, 2, 2]
    assert run["x"].values()[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert run["x"].at(step=4).array.tolist() == [2.0]
    assert run.tensors("x")[0].records == 6
    assert run.histogram("x").numel == 6
    every = run.series("x", attempts=True)
    assert every.columns["step"].tolist() == [0, 1, 2, 3, 2, 3, 4, 4, 5]
    assert every.columns["attempt"].tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2]


# -- histograms


@given(FLOATS)
def test_bin_e_counts_2_to_the_e_up_to_2_to_the_e_plus_1_exactly(values):
    array = np.array(values, np.float32)
    exact = array.astype(float).tolist()
    h = anchorlib.log2_histogram(array)
    assert dict(h.bins) == exponents(exact)
    assert h.zero == exact.count(0.0)
    assert h.nan == sum(map(math.isnan, exact))
    assert h.inf == sum(map(math.isinf, exact))
    assert h.subnormal == sum(0 < abs(x) < 2.0**-126 for x in exact)
    assert h.count == sum(h.bins.values())
    assert h.numel == len(values) == h.count + h.zero + h.nan + h.inf


@pytest.mark.parametrize(
    ("dtype", "smallest_normal"),
    [(torch.float16, 2.0**-14), (torch.bfloat16, 2.0**-126), (torch.float64, 2.0**-1022)],
    ids=str,
)
def test_subnormal_is_in_the_tensors_own_dtype(dtype, smallest_normal):
    x = torch.tensor([smallest_normal, smallest_normal / 2, smallest_normal / 4, 1.0], dtype=dtype)
    h = anchorlib.log2_histogram(x)
    assert h.subnormal == 2
    assert dict(h.bins) == exponents(x.double().tolist())


@given(FLOATS, FLOATS)
def test_histograms_add_up(one, two):
    a, b = np.array(one, np.float32), np.array(two, np.float32)
    both = anchorlib.log2_histogram(np.concatenate([a, b]))
    assert anchorlib.log2_histogram(a) + anchorlib.log2_histogram(b) == both


def test_a_runs_histogram_is_of_the_selected_steps(trained):
    gradients = [
        record.array
        for rank in (0, 1)
        for record in trained.run.series("fc2.bias", "grad", rank=rank).records()
        if record.coordinates.step in (1, 2)
    ]
    values = np.concatenate(gradients).astype(float).tolist()
    h = trained.run.histogram("fc2.bias@grad", steps=range(1, 3))
    assert dict(h.bins) == exponents(values)
    assert h.numel == len(values) == 4
    assert trained.run.histogram("fc2.bias@grad", steps=range(10)).numel == 8


# -- on disk


def number_of(form: zarr.Group, name: str, kind: str) -> int:
    """The number that a tensor's records have in `series`."""
    told = form.attrs["anchor"]["series"].items()
    (found,) = (int(n) for n, one in told if (one["name"], one["kind"]) == (name, kind))
    return found


def test_a_run_is_one_zarr_v3_hierarchy_with_one_array_a_dtype_and_shape(trained):
    root = trained.store / "run1.zarr"
    for node in (root, root / "rank0", root / "rank1/forms/float32_4x3/value"):
        assert json.loads((node / "zarr.json").read_text())["zarr_format"] == 3
    form = zarr.open_group(root / "rank0/forms/float32_1", mode="r")
    assert set(form.array_keys()) == {"value", "series", "step", "pass_index", "call"}
    mine = form["series"][:] == number_of(form, "fc2.bias", "grad")
    assert form["value"].shape == (4, 1)
    assert form["value"][:][mine].tolist() == torch.stack(trained.gradients).tolist()
    assert form["step"][:][mine].tolist() == list(range(4))
    assert form["value"].attrs["anchor"]["dtype"] == "float32"


def test_every_tensor_of_a_run_opens_as_an_array_of_its_own(trained):
    group = zarr.open_group(trained.run.zarr(), mode="r")["rank0/tensors/fc2.bias/grad"]
    assert group["value"][:].tolist() == torch.stack(trained.gradients).tolist()
    about = group["value"].attrs["anchor"]
    assert (about["name"], about["kind"], about["dtype"]) == ("fc2.bias", "grad", "float32")


def test_a_name_that_no_file_could_have_is_encoded_and_the_true_one_is_an_attribute(store):
    odd = ["a/b", "..", "\x1b[31m", "é", "c", "zarr.json", "x" * 1024, "x" * 1023 + "y"]

    def body(_: object) -> None:
        for number, name in enumerate(odd):
            anchorlib.anchor(torch.tensor([float(number)]), name)

    recorded(store, body)
    run = anchorlib.open_run("run1", store)
    tensors = zarr.open_group(run.zarr(), mode="r")["rank0/tensors"]
    found = {}
    for encoded, group in tensors.groups():
        assert len(encoded.encode()) <= 255
        array = group["value/value"]
        found[array.attrs["anchor"]["name"]] = array[:].tolist()
    assert found == {name: [[float(number)]] for number, name in enumerate(odd)}
    form = zarr.open_group(store / "run1.zarr/rank0/forms/float32_1", mode="r")
    assert [one["name"] for one in form.attrs["anchor"]["series"].values()] == odd
    assert sorted(path.name for path in store.iterdir() if not path.name.startswith(".")) == [
        "run1.zarr"
    ]


def test_the_hierarchy_is_valid_at_every_moment(store):
    with anchorlib.start("run1", store=store) as session, warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(1, 6):
            anchorlib.anchor(torch.full((3,), float(n)), "x")
            anchorlib.anchor(torch.full((n,), float(n)), f"new{n}")
            if n == 3:
                session.flush()
            members = dict(zarr.open_group(store / "run1.zarr", mode="r").members(None))
            for node in members.values():
                if isinstance(node, zarr.Array) and node.ndim and "records" not in node.path:
                    node[-1:]
            if n >= 3:
                form = members["rank0/forms/float32_3"]
                x = form["series"][:] == number_of(form, "x", "value")
                assert form["value"][:][x][:3].tolist() == [[float(k)] * 3 for k in (1, 2, 3)]


def test_a_closed_tensor_opens_in_xarray_with_its_coordinates(trained):
    group = "rank0/tensors/fc1/value"
    data = xarray.open_zarr(trained.run.zarr(), group=group, consolidated=False, chunks=None)
    assert {"step", "pass_index", "call"} <= set(data.coords)
    series = trained.run.series("fc1", rank=0)
    found = [data[name].values.tolist() for name in ("step", "pass_index", "call")]
    assert list(zip(*found, strict=True)) == places(series)
    assert np.array_equal(data["value"].values, torch.stack(trained.hidden).numpy())
    assert data["value"].sel(record=data["step"].load() == 2).shape == (2, 4, 3)
