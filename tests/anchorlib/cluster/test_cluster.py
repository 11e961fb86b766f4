"""Questions answered by a dask cluster: the same JSON to the bit, or one line and exit code 4."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anchorlib import reading
from anchorlib.cluster import Cluster, tasks
from anchorlib.reading import blocks
from anchorlib.record import Gap
from tests.cli.made import anchor, make_run, record

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


def scheduler(**options):
    with warnings.catch_warnings():
        # A port that something else has is no matter: any will do.
        warnings.filterwarnings("ignore", "Port .* is already in use", UserWarning)
        return LocalCluster(dashboard_address=None, host="127.0.0.1", scheduler_port=0, **options)


@pytest.fixture(scope="module")
def address():
    """A scheduler with two workers in this process."""
    with scheduler(n_workers=2, threads_per_worker=2, processes=False, protocol="tcp") as cluster:
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


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(block=st.integers(1, 4000), task=st.integers(1, 3000))
def test_it_is_the_same_however_the_work_is_cut(store, address, block, task):
    words = ASKED[1], ASKED[3], ASKED[5]
    alone = [told(store, one) for one in words]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block)
        patch.setattr(blocks, "OPEN_BYTES", 0)
        patch.setattr(tasks, "TASK_BYTES", task)
        assert [told(store, one) for one in words] == alone
        assert [told(store, one, "--dask", address) for one in words] == alone
