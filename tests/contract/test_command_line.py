"""Contract, section 3: the commands of `anchor`, on runs that sessions recorded."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import safetensors.torch
import torch
import xxhash

import anchorlib
from anchor_server import Collector
from anchorlib import Sum, Summary
from tests.cli.made import anchor, spawn
from tests.contract.runs import Net, batches, recorded

COMMAND = Path(sys.executable).with_name("anchor")
NAMES_FIELDS = [
    *("name", "kind", "mode", "dtype", "shape", "ranks", "records", "first_step", "last_step"),
    "bytes",
]
HIST_FIELDS = [
    *("run", "tensor", "kind", "first_step", "last_step"),
    *("numel", "count", "zero", "nan", "inf", "subnormal", "bins"),
]
STATS_COLUMNS = [
    *("step", "pass_index", "call", "phase", "attempt", "order", "time_ns", "count", "digest"),
    *("zero", "nan", "inf", "subnormal", "min", "max", "sum", "l2", "flags", "scale"),
]
PULLED = ["step", "pass_index", "call", "rank", "phase", "count", "attempt"]


@dataclass(frozen=True)
class Place:
    """Where an observation was made; `code` is what its tensor held."""

    step: int
    pass_index: int
    call: int
    rank: int
    phase: str

    @property
    def code(self) -> float:
        number = 1000 * self.rank + 100 * self.step + 10 * self.pass_index + self.call + 1
        return number * (-1 if self.phase == "eval" else 1)


PLACES = [
    Place(step, n, call, rank, phase)
    for rank in (0, 1)
    for step in range(4)
    for n, phase in ((0, "train"), (1, "train"), (0, "eval"))
    for call in (0, 1)
]
AWKWARD = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf, 2.0**-140, -1.5])
NARROW = torch.tensor([2.0**-30, 2.0**-16, 1.0, 3e5, -3e38, 2.0**-20, 448.0, 2.0**-130])


def observe(session: anchorlib.Session, rank: int) -> None:
    w = torch.ones(2, requires_grad=True)
    for place in (one for one in PLACES if one.rank == rank):
        if (place.pass_index, place.call, place.phase) == (0, 0, "train") and place.step:
            session.step()
        h = w * place.code
        with session.phase(place.phase):
            anchorlib.anchor(h, "h")
            if place.call == 1 and place.phase == "train":
                h.sum().backward()
    if rank == 0:
        for name, x in {"awkward": AWKWARD, "narrow": NARROW, "half": NARROW.bfloat16()}.items():
            anchorlib.anchor(x, name)
        for rows in (1, 2):
            anchorlib.anchor(torch.ones(rows, 2), "ragged")


def train(session: anchorlib.Session) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=2.0**-12)
    session.watch(net, tensors=["fc?.bias"], optimizer=optimizer)
    session.watch(net, tensors=["fc1.weight@pass_grad", "fc1.weight@value"])
    for x in batches(3):
        optimizer.zero_grad()
        net(x).pow(2).sum().backward()
        optimizer.step()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: `run1` of two ranks and many coordinates, `training` of a small net."""
    place = tmp_path_factory.mktemp("cli") / "anchors"
    for rank in (0, 1):
        recorded(place, lambda session, rank=rank: observe(session, rank), rank=rank)
    recorded(place, train, "training")
    return place


def exponents(values: Iterable[float]) -> dict[str, int]:
    """How many lie in 2^e <= |x| < 2^(e+1), by frexp; keys as JSON has them."""
    binned = (math.frexp(x)[1] - 1 for x in values if math.isfinite(x) and x != 0)
    return {str(e): n for e, n in sorted(Counter(binned).items())}


# -- where runs live


QUESTIONS = [
    ["names"],
    ["stats", "-t", "h"],
    ["hist", "-t", "h@value"],
    ["pull", "-t", "h@value"],
]


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda words: words[0])
def test_a_run_is_a_name_in_the_store_a_path_or_a_url(store, monkeypatch, question):
    command, *rest = question

    def answer(run: object, *where: object) -> Any:
        done = anchor(command, run, *rest, *where, "--json")
        assert (done.code, done.err) == (0, "")
        return done.json

    expected = answer("run1", "--store", store)
    assert expected
    assert answer(store / "run1.zarr") == expected
    monkeypatch.setenv("ANCHOR_STORE", str(store))
    assert answer("run1") == expected
    assert anchor(command, "run1", *rest, "--store", store.parent).code == 2
    monkeypatch.delenv("ANCHOR_STORE")
    monkeypatch.chdir(store.parent)
    assert answer("run1") == expected
    with Collector(store, bind="127.0.0.1:0") as collector:
        url = f"grpc://{collector.address}"
        assert answer("run1", "--store", url) == expected
        assert answer(f"{url}/run1") == expected


# -- --json and the two streams


@pytest.mark.parametrize("question", [["runs"], *QUESTIONS], ids=lambda words: words[0])
def test_data_goes_to_stdout_as_one_json_document(store, question):
    command, *rest = question
    run = [] if command == "runs" else ["run1"]
    done = anchor(command, *run, *rest, "--store", store, "--json")
    assert (done.code, done.err) == (0, "")
    json.loads(done.out)
    assert done.out.count("\n") == 1
    plain = anchor(command, *run, *rest, "--store", store)
    assert (plain.code, plain.err) == (0, "")
    assert plain.out


def test_what_is_not_finite_is_null_in_json(store):
    pulled = anchor("pull", "run1", "-t", "awkward", "--store", store, "--json").json
    assert pulled["value"] == [[0.0, -0.0, None, None, None, 2.0**-140, -1.5]]
    nothing = recorded(
        store, lambda _: anchorlib.anchor(torch.tensor([math.nan]), "x"), "nan", overwrite=True
    )
    assert nothing["x"].columns["nan"].tolist() == [1]
    (row,) = anchor("stats", "nan", "-t", "x", "--store", store, "--json").json
    assert [row[name] for name in ("min", "max", "sum", "l2")] == [None] * 4


# -- narrowing

NARROWINGS: dict[str, tuple[list[str], Any]] = {
    "one step": (["--step", "2"], lambda one: one.step == 2),
    "half open": (["--step", "1:3"], lambda one: one.step in range(1, 3)),
    "from": (["--step", "2:"], lambda one: one.step >= 2),
    "up to": (["--step", ":2"], lambda one: one.step < 2),
    "pass": (["--pass", "1"], lambda one: one.pass_index == 1),
    "call": (["--call", "0"], lambda one: one.call == 0),
    "rank": (["--rank", "1"], lambda one: one.rank == 1),
    "phase": (["--phase", "eval"], lambda one: one.phase == "eval"),
    "all at once": (
        ["--step", "0:2", "--pass", "0", "--call", "1", "--rank", "0", "--phase", "train"],
        lambda one: one in (Place(0, 0, 1, 0, "train"), Place(1, 0, 1, 0, "train")),
    ),
}


@pytest.mark.parametrize(("options", "wanted"), NARROWINGS.values(), ids=NARROWINGS)
def test_step_is_half_open_and_pass_call_rank_and_phase_narrow_it(store, options, wanted):
    codes = sorted(one.code for one in PLACES if wanted(one))
    where = ("-t", "h@value", "--store", store, *options, "--json")
    rows = anchor("stats", "run1", *where).json
    assert sorted(row["max"] for row in rows) == codes
    pulled = anchor("pull", "run1", *where).json
    assert sorted(value[0] for value in pulled["value"]) == codes
    counted = anchor("hist", "run1", *where).json
    assert counted["bins"] == exponents(codes * 2)
    assert counted["numel"] == 2 * len(codes)


# -- runs, names


def test_runs_are_told_with_name_state_ranks_steps_tensors_bytes_and_when(store, tmp_path):
    recorded(tmp_path, train, "done")
    with anchorlib.start("live", store=tmp_path) as session:
        anchorlib.anchor(torch.ones(3), "x")
        session.flush()
        done, live = anchor("runs", "--store", tmp_path, "--json").json
    about = ["name", "state", "ranks", "steps", "tensors", "bytes", "when", "written", "gaps"]
    assert list(done) == about
    run = anchorlib.open_run("done", tmp_path)
    assert (done["name"], done["state"], done["ranks"], done["steps"]) == ("done", "closed", [0], 3)
    assert (done["tensors"], done["bytes"]) == (len(run.tensors()), run.bytes)
    assert (live["name"], live["tensors"], live["bytes"]) == ("live", 1, 12)
    assert live["state"] != "closed"


def test_names_are_the_runs_tensors_with_exactly_these_fields(store):
    told = anchor("names", "training", "--store", store, "--json").json
    # Adding is free; what the contract names stays, in its order.
    assert all(list(entry) == [*NAMES_FIELDS, "gaps"] for entry in told)
    infos = anchorlib.open_run("training", store).tensors()
    assert [(e["name"], e["kind"]) for e in told] == [(t.name, t.kind) for t in infos]
    for entry, info in zip(told, infos, strict=True):
        assert (entry["shape"], entry["ranks"]) == (list(info.shape), [0])
        assert [entry[f] for f in NAMES_FIELDS if f not in ("shape", "ranks")] == [
            getattr(info, f) for f in NAMES_FIELDS if f not in ("shape", "ranks")
        ]
    chosen = anchor("names", "training", "fc2*@grad", "--store", store, "--json").json
    assert [entry["name"] for entry in chosen] == ["fc2.bias"]


# -- pull


def npz(path: Path) -> np.ndarray:
    with np.load(path) as found:
        assert set(found) == {"value", *PULLED}
        for name in ("step", "pass_index", "call", "rank", "phase"):
            assert found[name].tolist() == [getattr(one, name) for one in PLACES]
        return found["value"]


def comma_separated(text: str) -> np.ndarray:
    head, *rows = csv.reader(io.StringIO(text))
    assert head == [*PULLED, "i0", "value"]
    return np.array([float(row[-1]) for row in rows], np.float32).reshape(-1, 2)


READERS: dict[str, Any] = {
    ".npz": npz,
    ".npy": np.load,
    ".csv": lambda path: comma_separated(path.read_text()),
    ".pt": lambda path: torch.load(path)["value"].numpy(),
    ".safetensors": lambda path: safetensors.torch.load_file(path)["value"].numpy(),
    ".parquet": lambda path: np.array(
        pyarrow.parquet.read_table(path)["value"].to_pylist(), np.float32
    ),
}


@pytest.mark.parametrize("suffix", READERS)
def test_pull_writes_the_values_in_the_format_of_the_suffix(store, tmp_path, suffix):
    place = tmp_path / f"h{suffix}"
    done = anchor("pull", "run1", "--tensor", "h@value", "-o", place, "--store", store)
    assert (done.code, done.out, done.err) == (0, "", "")
    assert READERS[suffix](place).tolist() == [[one.code] * 2 for one in PLACES]


def test_pull_to_a_dash_is_csv_on_stdout(store):
    done = anchor("pull", "run1", "--tensor", "h@value", "-o", "-", "--store", store)
    assert comma_separated(done.out).tolist() == [[one.code] * 2 for one in PLACES]


def test_a_ragged_npz_has_value_0_and_so_on(store, tmp_path):
    place = tmp_path / "ragged.npz"
    assert anchor("pull", "run1", "-t", "ragged", "-o", place, "--store", store).code == 0
    with np.load(place) as found:
        assert set(found) == {"value_0", "value_1", *PULLED}
        assert [found[f"value_{n}"].shape for n in (0, 1)] == [(1, 2), (2, 2)]


# -- hist


def test_hist_tells_exactly_these_fields_and_counts_what_numpy_counts(store):
    told = anchor("hist", "run1", "--tensor", "awkward", "--store", store, "--json").json
    assert list(told) == HIST_FIELDS
    values = AWKWARD.double().tolist()
    assert told["bins"] == exponents(values) == {"-140": 1, "0": 1}
    assert (told["run"], told["tensor"], told["kind"]) == ("run1", "awkward", "value")
    assert (told["first_step"], told["last_step"]) == (3, 3)
    assert (told["numel"], told["count"], told["zero"]) == (7, 2, 2)
    assert (told["nan"], told["inf"], told["subnormal"]) == (1, 2, 1)


@pytest.mark.parametrize(
    ("selector", "kind"),
    [("fc2.bias", "grad"), ("fc1.weight", "pass_grad"), ("fc2.bias@delta", "delta")],
)
def test_hists_kind_defaults_to_grad_else_pass_grad(store, selector, kind):
    told = anchor("hist", "training", "--tensor", selector, "--store", store, "--json").json
    assert told["kind"] == kind
    name = selector.partition("@")[0]
    values = anchorlib.open_run("training", store)[f"{name}@{kind}"].values()
    assert told["bins"] == exponents(values.astype(float).ravel().tolist())


def test_a_hist_of_several_tensors_is_pooled_and_has_parts(store):
    told = anchor("hist", "training", "--tensor", "fc?.bias", "--store", store, "--json").json
    assert [(part["tensor"], part["kind"]) for part in told["parts"]] == [
        ("fc1.bias", "grad"),
        ("fc2.bias", "grad"),
    ]
    assert all(list(part) == HIST_FIELDS for part in told["parts"])
    run = anchorlib.open_run("training", store)
    both = [run[f"{n}.bias@grad"].values().astype(float).ravel().tolist() for n in ("fc1", "fc2")]
    assert told["bins"] == exponents(both[0] + both[1])
    assert [part["numel"] for part in told["parts"]] == [len(one) for one in both]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("fp16", torch.float16), ("bf16", torch.bfloat16), ("e5m2", torch.float8_e5m2)],
)
@pytest.mark.parametrize("scale", [1, 1024])
def test_hist_as_tells_the_shares_that_a_cast_by_torch_makes(store, name, dtype, scale):
    told = anchor(
        *("hist", "run1", "--tensor", "narrow", "--as", name, "--scale", scale),
        *("--store", store, "--json"),
    ).json
    cast = (NARROW.double() * scale).to(dtype).double()
    normal = torch.finfo(dtype).smallest_normal
    shares = {
        "underflow": (cast == 0),
        "subnormal_as": (cast != 0) & (cast.abs() < normal),
        "overflow": ~cast.isfinite(),
    }
    for share, where in shares.items():
        assert told[share] == where.double().mean().item(), share


def test_hist_as_e4m3_counts_what_is_beyond_448(store):
    told = anchor(
        *("hist", "run1", "--tensor", "narrow", "--as", "e4m3", "--store", store, "--json")
    ).json
    # 2^-30, 2^-16, 2^-20 and 2^-130 lie under half of 2^-9; 3e5 and 3e38 beyond 448.
    assert (told["underflow"], told["subnormal_as"], told["overflow"]) == (0.5, 0.0, 0.25)


@pytest.mark.parametrize(
    "suffix", [pytest.param(".png", marks=pytest.mark.slow), ".html", ".csv", ".json"]
)
def test_hist_writes_the_form_of_the_suffix(store, tmp_path, suffix):
    place = tmp_path / f"h{suffix}"
    where = ("hist", "run1", "--tensor", "awkward", "--store", store)
    done = anchor(*where, "-o", place)
    assert (done.code, done.out) == (0, "")
    written = place.read_bytes()
    if suffix == ".json":
        assert json.loads(written) == anchor(*where, "--json").json
    elif suffix == ".csv":
        assert ["awkward", "value", "-140", "1"] in list(csv.reader(io.StringIO(written.decode())))
    else:
        start = {".png": b"\x89PNG\r\n\x1a\n", ".html": b"<!doctype html>"}[suffix]
        assert written[: len(start)].lower() == start.lower()


# -- stats


def test_stats_has_the_summary_columns_one_row_a_record(store):
    rows = anchor("stats", "run1", "--tensor", "h@value", "--store", store, "--json").json
    assert len(rows) == len(PLACES)
    for row, place in zip(rows, PLACES, strict=True):
        assert set(row) == {*STATS_COLUMNS, "tensor", "kind", "mode", "rank"}
        assert [row[name] for name in ("step", "pass_index", "call", "rank", "phase")] == [
            *(place.step, place.pass_index, place.call, place.rank, place.phase)
        ]
        assert row["min"] == row["max"] == row["sum"] / 2 == place.code
        assert row["l2"] == pytest.approx(abs(place.code) * math.sqrt(2))
        bits = np.full(2, place.code, np.float32).tobytes()
        assert row["digest"] == xxhash.xxh3_128_hexdigest(bits)


# -- exit codes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["names", "run2"], "did you mean 'run1'"),
        (["names", "run1", "awkwrad"], "did you mean 'awkward'"),
        (["hist", "training", "-t", "fc2.bais"], "did you mean 'fc2.bias'"),
        (["stats", "training", "-t", "fc2.bias@gard"], "did you mean 'fc2.bias@grad'"),
        (["pull", "run1", "-t", "H@value"], "did you mean 'h@value'"),
        (["hist", "run1"], "--tensor"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_usage_and_unknown_runs_and_tensors_are_exit_2_with_one_line(store, words, said):
    where = [] if words == ["frobnicate"] else ["--store", store]
    done = anchor(*words, *where)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("anchor: ")
    assert done.err.count("\n") == 1
    assert said in done.err


def test_incomplete_data_is_exit_3_where_the_answer_depends_on_it(tmp_path):
    def bounded(session: anchorlib.Session) -> None:
        for _ in range(4):
            anchorlib.anchor(torch.ones(25_000), "x")
            session.step()

    def lossy(session: anchorlib.Session) -> None:
        for device in ("cpu", "meta", "cpu"):
            anchorlib.anchor(torch.ones(2, device=device), "x")
            anchorlib.anchor(torch.ones(2), "y")

    recorded(tmp_path, bounded, "bounded", max_bytes=250_000)
    recorded(tmp_path, lossy, "lossy")
    codes = {
        (run, command, name): anchor(command, run, "-t", name, "--store", tmp_path, "--json").code
        for run, name in (("bounded", "x"), ("lossy", "x"), ("lossy", "y"))
        for command in ("hist", "stats", "pull")
    }
    assert codes == {
        # Summaries are whole, so only the values that are asked for are missing.
        ("bounded", "hist", "x"): 0,
        ("bounded", "stats", "x"): 0,
        ("bounded", "pull", "x"): 3,
        ("lossy", "hist", "x"): 3,
        ("lossy", "stats", "x"): 3,
        ("lossy", "pull", "x"): 3,
        ("lossy", "hist", "y"): 0,
        ("lossy", "stats", "y"): 0,
        ("lossy", "pull", "y"): 0,
    }
    told = anchor("pull", "bounded", "-t", "x", "--store", tmp_path, "--json")
    assert len(told.json["value"]) == 2
    assert told.err.count("\n") == 1
    assert anchor("names", "lossy", "--store", tmp_path).code == 0


def test_summaries_cannot_be_pulled_and_two_modes_are_not_mixed(tmp_path):
    recorded(tmp_path, lambda _: anchorlib.anchor(torch.ones(2), "x", [Sum, Summary]))
    where = ("-t", "x", "--store", tmp_path)
    assert anchor("pull", "run1", *where, "--mode", "summary").code == 2
    assert anchor("hist", "run1", *where).code == 2
    assert anchor("pull", "run1", *where, "--mode", "sum", "--json").json["value"] == [[1.0, 1.0]]


@pytest.mark.slow
def test_an_unreachable_collector_is_exit_4():
    done = spawn("runs", "--store", "grpc://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("anchor: ")
    assert done.stderr.count("\n") == 1
    assert "grpc://127.0.0.1:1" in done.stderr


# -- serve


@contextmanager
def serving(place: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The installed command, collecting on a free port; its first line is still to be read."""
    process = subprocess.Popen(
        [COMMAND, "serve", "--store", place, "--bind", "127.0.0.1:0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("ANCHOR_")},
    )
    try:
        with process:
            yield process
    finally:
        if process.poll() is None:
            process.kill()


@pytest.mark.slow
def test_serve_says_where_it_collects_and_sigterm_drains_and_exits_0(tmp_path):
    place = tmp_path / "served"
    with serving(place) as process:
        line = process.stdout.readline()
        address = line.split()[3]
        assert line == f"anchor: collecting on {address} into {place}\n"
        assert int(address.removeprefix("127.0.0.1:")) > 0
        session = anchorlib.start("run1", store=f"grpc://{address}")
        for n in range(50):
            anchorlib.anchor(torch.full((1000,), float(n)), "x")
            session.step()
        session.flush()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")
        session.close(timeout=0.1)
    values = anchorlib.open_run("run1", place)["x"].values()
    assert values[:, 0].tolist() == list(range(50))


@pytest.mark.slow
def test_serve_as_json_says_address_and_store(tmp_path):
    with serving(tmp_path, "--json") as process:
        said = json.loads(process.stdout.readline())
        assert set(said) == {"address", "store"}
        assert said["store"] == str(tmp_path)
        assert int(said["address"].removeprefix("127.0.0.1:")) > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_serve_beyond_loopback_without_tls_and_token_refuses_to_start(tmp_path):
    done = anchor("serve", "--store", tmp_path, "--bind", "0.0.0.0:0")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("anchor: ")
    assert done.err.count("\n") == 1
    assert "--insecure" in done.err
