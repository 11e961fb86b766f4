"""What is compiled says to the last bit what numpy says; where it cannot be, numpy says it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlib.dtypes import DTYPES
from anchorlib.summary import compiled, float_bits, log2_histogram, object_file, summarise
from anchorlib.summary.float_bits import BLOCK, CHUNK, SINGLE
from tests import oracle
from tests.anchorlib.summary.conftest import path
from tests.scans import loaded_scans
from tests.seeds import examples
from tests.strategies import from_patterns, patterns, stored

pytestmark = [
    pytest.mark.slow,  # the mark of the fixture's own parameter is not that of this one
    pytest.mark.usefixtures("path_taken"),
    pytest.mark.parametrize("path_taken", ["compiled"], indirect=True),
]

FLOATS = [name for name, kind in DTYPES.items() if kind.family in ("float", "complex")]
RARE = {
    "nothing": [],
    "zeros": [0.0, -0.0],
    "nan": [np.nan],
    "inf": [np.inf, -np.inf],
    "subnormal": [1e-42, -3e-40],
    "huge and tiny": [3e38, -2e-38],
    "all of it": [0.0, np.nan, -np.inf, 1e-45, -1e-40, 3.4e38],
}


def same(raw, name, flush=False):
    """Both paths on one array; the text tells -0.0 from 0.0 and the order of bins."""
    with oracle.flushing(flush):
        found = summarise(raw, name), log2_histogram(raw, name)
        with path("numpy"):
            expected = summarise(raw, name), log2_histogram(raw, name)
    assert repr(found) == repr(expected)
    assert found == expected


@settings(max_examples=examples(400))
@given(stored(st.sampled_from(FLOATS)), st.booleans(), st.sampled_from([1, 3, 64, BLOCK]))
def test_any_float_is_summarised_to_the_same_bits(array, flush, block):
    with patch.object(float_bits, "BLOCK", block):
        same(*array, flush)


SIZES = {*range(1, 20), *(c + d for c in (64, 128, 136, 256, 384, 1024) for d in range(-9, 10))}
SIZES |= {c + d for c in (BLOCK, 2 * BLOCK, CHUNK) for d in (-129, -8, -1, 0, 1, 7, 9, 129, 1001)}


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_sums_agree_at_every_length_where_their_order_changes(name):
    values = np.random.default_rng(0).standard_normal(max(SIZES)).astype(name)
    for size in sorted(SIZES):
        same(values[:size], name)


@pytest.mark.parametrize("flush", [False, True], ids=["ieee", "flush"])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("rare", RARE)
def test_what_is_rare_is_summarised_to_the_same_bits(rare, name, flush):
    random = np.random.default_rng(1)
    values = random.standard_normal(BLOCK + 1500)
    places = random.integers(0, values.size, 40)
    with np.errstate(all="ignore"):
        values[places] = np.resize([*RARE[rare], 1.0], 40)
        if name == "bfloat16":
            raw = (values.astype("<f4").view("<u4") >> 16).astype("<u2")
        else:
            raw = values.astype(DTYPES[name].storage)
    same(raw, name, flush)


@settings(max_examples=examples(60))
@given(st.sampled_from(["float32", "float64"]), st.data(), st.booleans())
def test_any_patterns_among_many_are_summarised_to_the_same_bits(name, data, flush):
    few = from_patterns(data.draw(st.lists(patterns(name), min_size=1, max_size=9)), name)
    raw = np.linspace(-2, 3, 700).astype(name)
    raw[:: data.draw(st.integers(1, 300))] = few[0]
    raw[-few.size :] = few
    same(raw, name, flush)


@pytest.mark.parametrize("exponent", [-1074, -500, -401, -400, 0, 400, 401, 511, 1023])
def test_float64_that_need_a_scale_are_left_to_numpy(exponent):
    values = np.ldexp(np.linspace(0.5, 1, 1000), exponent)
    values[::2] = 0
    same(values, "float64")
    scan = loaded_scans().get(float_bits.DOUBLE, values)
    # In `values` the largest exponent is that of 2**exponent, and one less below it.
    assert (scan.both(values, DTYPES["float64"]) is None) == (abs(exponent) > 400)


def test_an_array_that_is_not_aligned_is_left_to_numpy():
    raw = np.frombuffer(bytes(1) + np.arange(2000, dtype="<f4").tobytes(), "<f4", offset=1)
    assert loaded_scans().get(SINGLE, raw) is None
    same(raw, "float32")


def test_other_threads_run_while_an_array_is_scanned():
    raw, kind, scan = np.ones(1 << 24, "<f4"), DTYPES["float32"], loaded_scans()._ready["single"]
    ticks, ended = 0, threading.Event()

    def tick():
        nonlocal ticks
        while not ended.is_set():
            ticks += 1
            time.sleep(0)

    def ticks_meanwhile():
        before = ticks
        scan.both(raw, kind)
        return ticks - before

    thread = threading.Thread(target=tick)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10)  # who keeps the lock would be asked for it after ten seconds
    try:
        thread.start()
        assert any(ticks_meanwhile() for _ in range(100))
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        thread.join()


# What decides.


@pytest.mark.long
def test_it_is_compiled_once_enough_was_scanned_and_nobody_waits():
    scans = compiled.Scans()
    few = np.ones(1000, "<f4")
    with patch.object(compiled, "WORTH", 2 * few.nbytes):
        assert scans.get(SINGLE, few) is None
        assert scans._compiling is None
        assert scans.get(SINGLE, few) is None
        assert scans._compiling is not None
        assert scans.load() is None
        few = np.ones(2000, "<f4")
        assert scans.get(SINGLE, few) is not None


def fault_with(target, name, value):
    """Why there are no scans, where that is planted."""
    scans = compiled.Scans()
    with patch.object(target, name, value):
        fault = scans.load()
    assert scans.get(SINGLE, np.ones(5000, "<f4")) is None
    return fault


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("raise SystemExit(3)", "nothing was compiled"),
        ("pass", "nothing was compiled"),
        ("print('no object file')", "nothing was compiled"),
    ],
)
def test_a_compiler_that_fails_leaves_numpy(script, said, tmp_path):
    bad = tmp_path / "kernels.py"
    bad.write_text(script)
    assert said in fault_with(object_file, "SCRIPT", bad)


def test_without_numba_there_is_numpy():
    assert fault_with(object_file, "find_spec", lambda _: None) == (
        "ModuleNotFoundError: numba is not installed"
    )


def test_no_process_to_be_had_leaves_numpy():
    assert "Error" in fault_with(object_file.sys, "executable", "/no/such/python")


@pytest.mark.long
@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("LEAF = 128", "LEAF = 64", "adds in another order than numpy"),
        pytest.param(
            *("start = zero\n", "start = zero + 1\n", "adds in another order than numpy"),
            marks=pytest.mark.long,
        ),
        ("    single = ", "    os.abort()\n    single = ", "nothing was compiled"),
        ("kept += 1\n", "kept += len(str(start))\n", "ValueError: it needs"),
    ],
)
def test_a_wrong_kernel_is_not_used(right, wrong, said, tmp_path):
    script = tmp_path / "kernels.py"
    source = object_file.SCRIPT.read_text()
    assert right in source
    script.write_text(source.replace(right, wrong))
    assert said in fault_with(object_file, "SCRIPT", script)


@pytest.mark.long
def test_a_process_never_imports_numba_and_says_the_same_before_and_after():
    code = """
import json, sys, threading, time
import numpy as np
from anchorlib.summary import compiled, summarise
values = np.random.default_rng(3).standard_normal(1 << 18).astype("<f4")
compiled.WORTH = 3 * values.nbytes
said, threads = set(), threading.active_count()
while not compiled.SCANS._ready and compiled.SCANS.fault is None:
    said.add(repr(summarise(values, "float32")))
    time.sleep(0.05)  # the child that compiles gives way to whatever runs
said.add(repr(summarise(values, "float32")))
print(json.dumps([len(said), compiled.SCANS.fault, "numba" in sys.modules, threads]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [1, None, False, 1]
    assert done.stderr == ""


@pytest.mark.slow
def test_a_process_that_ends_first_leaves_nothing_behind():
    code = """
import numpy as np
from anchorlib.summary import compiled, summarise
compiled.WORTH = 1
summarise(np.ones(5000, "<f4"), "float32")
print(compiled.SCANS._compiling._process.pid)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)
