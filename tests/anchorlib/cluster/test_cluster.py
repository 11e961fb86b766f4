"""Questions answered by a dask cluster: the same JSON to the bit, or one line and exit code 4."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anchorlib
from anchorlib.cluster import Cluster, cluster, tasks
from anchorlib.errors import ClusterError
from anchorlib.reading import blocks, map_blocks
from anchorlib.record import Gap
from tests.anchorlib.cluster.clusters import scheduler, worker_processes
from tests.cli.made import anchor, make_run, record
from tests.seeds import examples

DTYPES = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "int64", "bool")
ASKED = (
    ("hist", "run1", "--tensor", "*@grad", "--json"),
    ("hist", "run1", "--tensor", "*@grad", "--as", "fp16", "--scale", "3", "--json"),
    ("hist", "run1", "--tensor", "b.*", "--step", "1:3", "--rank", "0"),
    ("stats", "run1", "--tensor", "*", "--json"),
    ("stats", "run1", "--tensor", "a@grad", "--rank", "1", "--json"),
    ("compare", "run1", "run2", "--json"),
    ("compare", "run1", "run2", "--noise", "run3", "--csv", "-"),
)


@pytest.fixture(scope="module")
def address():
    """A scheduler with two workers in this process."""
    with scheduler(2) as cluster:
        yield cluster.scheduler_address


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Three runs of two ranks each: many dtypes and shapes, gaps, sums, NaNs, no values."""
    place = tmp_path_factory.mktemp("store")
    for number, run in enumerate(("run1", "run2", "run3")):
        for rank in range(2):
            gaps = [Gap("a", "grad", "all", "queue full", 2, 1, 1)] if rank else []
            make_run(place, list(records(number, rank)), run, rank=rank, gaps=gaps)
    return place


def records(number, rank):
    numbers = np.random.default_rng(rank)
    for step in range(4):
        for name in DTYPES:
            raw = numbers.integers(0, 100, (3, 5)).astype("u1")
            if number and step > 1:
                raw[0, 0] += number
            width = 1 if name.startswith(("float8", "bool")) else None
            if name == "bool":
                yield record(f"b.{name}", "value", raw > 50, step=step, rank=rank)
            elif name == "bfloat16":
                bits = raw.astype("<u2") << 7
                yield record(f"b.{name}", raw=bits, dtype=name, step=step, rank=rank)
            elif width:
                yield record(f"b.{name}", raw=raw, dtype=name, step=step, rank=rank)
            else:
                yield record(f"b.{name}", raw=raw.astype(name), step=step, rank=rank)
        wide = numbers.normal(size=(step + 1, 7)).astype("f4")
        if number and step > 1:
            wide[0, 0] += 2.0**-10 * number
        wide[0, 1] = (np.nan, np.inf, 0.0, 1e-42)[step]
        yield record("a", raw=wide, step=step, rank=rank)
        yield record("s", "value", raw=wide * 3, mode="sum:window=2", count=2, step=step, rank=rank)
        yield record("f", "value", raw=wide, mode="final", step=step, rank=rank)
        yield record("lost", "value", None, dropped=wide, step=step, rank=rank)


def told(store, words, *more):
    outcome = anchor(*words, "--store", store, *more)
    return outcome.code, outcome.out, outcome.err


@pytest.mark.parametrize("words", ASKED, ids=" ".join)
def test_the_answer_of_a_cluster_is_that_of_one_process_to_the_byte(store, address, words):
    alone = told(store, words)
    assert alone[0] in (0, 1, 3)
    assert alone[1]
    assert told(store, words, "--dask", address) == alone


@settings(max_examples=examples(4), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(block=st.integers(1, 4000), task=st.integers(100, 3000))
def test_it_is_the_same_however_the_work_is_cut(store, address, block, task):
    words = ASKED[1], ASKED[3], ASKED[5]
    alone = [told(store, one) for one in words]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block)
        patch.setattr(blocks, "OPEN_BYTES", 0)
        patch.setattr(tasks, "TASK_BYTES", task)
        assert [told(store, one) for one in words] == alone
        assert [told(store, one, "--dask", address) for one in words] == alone


def test_values_that_are_damaged_are_told_as_by_one_process(store, address, tmp_path):
    shutil.copytree(store, tmp_path, dirs_exist_ok=True)
    for form, last in ("float32_3x5", 3 * 60), ("float8_e4m3fn_3x5", 3 * 15):
        chunk = tmp_path / "run1.zarr/rank0/forms" / form / "value/c.0.0.0"
        raw = bytearray(chunk.read_bytes())
        raw[last] ^= 1
        chunk.write_bytes(raw)
    for words, code in (ASKED[0], 3), (ASKED[5], 1):
        alone = told(tmp_path, words)
        assert alone[0] == code
        assert "damaged" in alone[1] + alone[2]
        assert told(tmp_path, words, "--dask", address) == alone


def cut_short(monkeypatch, act):
    """Has every part be a task of its own, and `act` done after the first answer."""
    monkeypatch.setattr(tasks, "TASK_BYTES", 1)
    whole = Cluster.map

    def interrupted(self, function, parts):
        for number, answer in enumerate(whole(self, function, parts)):
            yield answer
            if number == 0:
                act()

    monkeypatch.setattr(Cluster, "map", interrupted)


def test_a_worker_that_is_killed_costs_time_alone_and_without_any_there_is_no_answer(
    store, monkeypatch
):
    alone = [told(store, one) for one in (ASKED[0], ASKED[3], ASKED[5])]
    with scheduler(0) as local, worker_processes(local.scheduler_address, 3) as workers:
        asked = "--dask", local.scheduler_address
        doomed = iter(workers)
        cut_short(monkeypatch, lambda: next(doomed).kill())
        assert told(store, ASKED[0], *asked) == alone[0]
        assert told(store, ASKED[5], *asked) == alone[2]
        monkeypatch.setattr(cluster, "PATIENCE_SECONDS", 2.0)
        code, out, err = told(store, ASKED[3], *asked)
    assert (code, out) == (4, "")
    assert err.count("\n") == 1
    assert "has had no worker for 2 seconds" in err


def test_a_scheduler_that_goes_leaves_no_answer(store, monkeypatch):
    with scheduler(1) as local:
        cut_short(monkeypatch, local.close)
        code, out, err = told(store, ASKED[0], "--dask", local.scheduler_address)
    assert (code, out) == (4, "")
    assert err.count("\n") == 1
    assert "is gone; nothing is answered" in err


def test_a_scheduler_that_does_not_answer_is_one_line(store, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.2)
    code, out, err = told(store, ASKED[0], "--dask", "127.0.0.1:9")
    assert (code, out) == (4, "")
    assert err.startswith("anchor: no dask scheduler answers at tcp://127.0.0.1:9: ")
    assert err.count("\n") == 1


def test_a_run_that_is_not_there_is_told_before_a_cluster_is_asked(store):
    for words in (
        ("compare", "run1", "none"),
        ("stats", "none", "-t", "*"),
        ("hist", "none", "-t", "*"),
    ):
        code, out, err = told(store, words, "--dask", "127.0.0.1:9")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "no run 'none'" in err


@pytest.mark.parametrize(
    "text", ["", "localhost", "http://h:1", "tcp://h", "tcp://h:0", "tcp://h:99999", "tls://h:1"]
)
def test_what_is_no_address_is_refused_before_anything_is_asked(store, text):
    code, out, err = told(store, ASKED[0], "--dask", text)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


def test_a_worker_that_does_not_see_the_run_says_so(store, address, tmp_path):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    shutil.copytree(store, here)
    series = anchorlib.open_run("run1", here).series("a", "grad", rank=0)
    parts = blocks.plan(series)
    here.rename(elsewhere)
    with Cluster(address) as asked:
        with pytest.raises(
            ClusterError, match=r"^the worker at tcp://.* cannot open .*no store at"
        ):
            list(asked.map(len, parts))
        make_run(here, [record("a", step=step) for step in range(40)])
        with pytest.raises(ClusterError, match="another run is called run1 there"):
            list(asked.map(len, parts))


@pytest.mark.parametrize(("package", "code"), [("anchorlib", 4), ("Python", 0)])
def test_versions_that_differ_are_one_line(store, address, monkeypatch, package, code):
    words = "hist", "run1", "--tensor", "a@grad", "--rank", "0", "--json"
    monkeypatch.setattr(cluster, "versions", lambda: tasks.versions() | {package: "9.9"})
    found = told(store, words, "--dask", address)
    assert found[0] == code
    assert found[2].count("\n") == 1
    assert "9.9" in found[2]
    if code == 0:
        assert found[1] == told(store, words)[1]


def test_of_a_fault_in_a_worker_one_line_is_told(store, address, monkeypatch):
    series = anchorlib.open_run("run1", store).series("a", "grad", rank=0)
    with Cluster(address) as asked, pytest.raises(ClusterError, match="failed: ZeroDivisionError"):
        map_blocks(lambda one: 1 // 0, [series], asked.map)


def test_a_task_carries_words_and_no_credentials(store, monkeypatch):
    monkeypatch.setenv("ANCHOR_TOKEN", "a-secret-token")
    series = anchorlib.open_run("run1", store).series("a", "grad", rank=0)
    (block,) = blocks.plan(series)
    (task,) = tasks.packed([block])
    packed = pickle.dumps(task)
    assert len(packed) < 1000
    assert b"a-secret-token" not in packed


def test_there_are_never_more_than_a_hundred_thousand_tasks(monkeypatch):
    class Part:
        weight = tasks.TASK_BYTES

        def sendable(self):
            return self

    part = Part()  # 256 MiB, and there is a petabyte of it
    assert sum(1 for _ in tasks.packed(part for _ in range(4_000_000))) < 100_000


def test_without_the_option_nothing_of_dask_is_imported(store):
    program = (
        "import sys; from anchor_cli.main import main; "
        f"main(['hist', 'run1', '--tensor', 'a@grad', '--store', {str(store)!r}]); "
        "main(['compare', 'run1', 'run2', '--store', sys.argv[1]]); "
        "sys.exit(any(name.split('.')[0] in ('dask', 'distributed') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program, store], check=True, stdout=subprocess.DEVNULL)


def test_without_dask_the_option_says_what_to_install(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    code, out, err = told(store, ASKED[0], "--dask", "tcp://127.0.0.1:8786")
    assert (code, out) == (2, "")
    assert err == "anchor: --dask needs dask: pip install 'anchorlib[dask]'\n"
