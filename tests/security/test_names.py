"""Hostile names: they come back exactly, stay inside the store, and reach no terminal raw."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import pytest

from anchor_server import serve
from anchorlib.reading import open_run
from anchorlib.wire import PushRequest, sealed
from anchorlib.wire.v1.collector_pb2 import Close
from tests.cli.made import anchor
from tests.server.pushing import Pusher, record

NAMES = [
    "../../etc/passwd",
    "..",
    ".",
    "/abs",
    "//",
    "zarr.json",
    "c/0",
    "c.0",
    "a",
    "a/b",
    "a//b",
    "A",
    "n" * 300,
    "\N{GRINNING FACE}" * 256,  # 1024 bytes
    "nul\0nul",
    "new\nline",
    "\r\x1b[2J\x1b]0;title\x07",
    "\u202egnihton\u2066",
    "é",
    "e\u0301",
    "\N{GRINNING FACE}",
    "<script>alert(1)</script>",
    "</script><b>",
    "CON",
    "con",
    "aux.txt",
    ".anchor",
    "__array__",
    "%2e%2e%2f",
    "tensors",
    "rank0",
    "value",
    "$(touch owned)",
    "`touch owned`",
    "'; rm -rf x",
    "grad@grad",
    "re:.*",
    "*",
    " ",
    "\u00a0",
    "\ufeffbom",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A store that hostile names were pushed into, in a folder that held nothing else."""
    outer = tmp_path_factory.mktemp("outer")
    with serve(outer / "store") as collector, Pusher(collector.address) as stream:
        stream.push(*(record(step, name=name) for step, name in enumerate(NAMES)))
        stream.acked(len(NAMES))
        stream.send(sealed(PushRequest(close=Close())))
        while stream.reply().WhichOneof("message") != "closed":
            pass
    return outer


def test_every_name_comes_back_exactly_with_its_own_values(place):
    run = open_run("run1", place / "store")
    assert [info.name for info in run.tensors()] == NAMES
    for step, name in enumerate(NAMES):
        series = run.series(name, "grad")
        assert (len(series), series.values()[0].tolist()) == (1, [step + i for i in range(4)])


def test_nothing_was_made_outside_the_run(place):
    for folder, held in (
        (".", ["store"]),
        ("store", [".anchor", "run1.zarr"]),
        ("store/run1.zarr", ["rank0", "zarr.json"]),
    ):
        assert sorted(path.name for path in (place / folder).iterdir()) == held
    for path, folders, files in os.walk(place / "store"):
        for name in (*folders, *files):
            assert not (Path(path) / name).is_symlink()
            assert len(name.encode()) <= 255
            assert (name.isascii(), name.isprintable()) == (True, True), name


def test_no_name_reaches_a_terminal_raw(place):
    for command in (
        ("names", "run1"),
        ("names", "run1", "--json"),
        ("verify", "run1"),
        ("stats", "run1", "--tensor", "*"),
        ("hist", "run1", "--tensor", "*"),
    ):
        done = anchor(*command, "--store", place / "store")
        assert done.code == 0, done.err
        for text in (done.out, done.err):
            bad = {c for c in text if not (c.isprintable() or c == "\n")}
            assert not bad, (command, bad)


def test_any_zarr_reader_lists_them(place):
    zarr = pytest.importorskip("zarr")
    root = zarr.open_group(place / "store/run1.zarr", mode="r")
    told = [form.attrs["anchor"]["series"].values() for _, form in root["rank0/forms"].groups()]
    assert {one["name"] for form in told for one in form} == set(NAMES)
    view = open_run("run1", place / "store").zarr()
    tensors = zarr.open_group(view, mode="r")["rank0/tensors"]
    found = {
        array.attrs["anchor"]["name"]
        for _, group in tensors.groups()
        for _, kind in group.groups()
        for key, array in kind.arrays()
        if key == "value"
    }
    assert found == set(NAMES)


@pytest.mark.parametrize(
    "run",
    ["", ".", "..", "../x", "a/b", "/abs", "a\\b", "nul\0", "é", "x" * 65, ".anchor", "a b", "a\n"],
)
def test_a_run_name_that_is_a_path_is_refused_and_makes_nothing(tmp_path, run):
    with serve(tmp_path / "store") as collector:
        with Pusher(collector.address, run=run) as stream:
            code, details = stream.refusal()
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert "\n" not in details
    found = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")}
    assert found == {"store", "store/.anchor", "store/.anchor/tmp"}  # tried at the start


@pytest.mark.parametrize("name", ["", "x" * 1025, "\N{GRINNING FACE}" * 257])
def test_a_name_that_is_too_long_or_empty_is_refused(tmp_path, name):
    with serve(tmp_path) as collector, Pusher(collector.address) as stream:
        stream.push(record(0, name=name))
        code, details = stream.refusal()
    assert (code, "1 to 1024 bytes" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
