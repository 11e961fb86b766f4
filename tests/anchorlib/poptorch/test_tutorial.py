"""The tutorial's program, in PopTorch's own words, as a program of its own."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import anchorlib
from tests.recording import trouble
from tests.warm import warm_python

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[3] / "examples" / "poptorch_mnist_style.py"


def run_example(folder, *arguments, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ANCHOR_")}
    done = subprocess.run(
        [warm_python(), "-W", "error", str(EXAMPLE), *arguments],
        env={**clean, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, trouble(done.stderr)) == (0, "")
    return done.stdout


def counts(said):
    """The exponents and counts of the histogram, and its zeros."""
    bins = {int(e): int(n.replace(",", "")) for e, n in re.findall(r"2\^(-?\d+) +([\d,]+)", said)}
    (zero,) = re.findall(r"zero +([\d,]+)", said)
    return bins, int(zero.replace(",", ""))


def test_the_tutorial_prints_the_histogram_of_the_gradients_of_its_last_call(tmp_path):
    said = run_example(tmp_path, "--epochs", "1")
    bins, zero = counts(said)
    elements = 784 * 320 + 320 + 320 * 100 + 100 + 100 * 10 + 10
    assert sum(bins.values()) + zero == 4 * elements  # micro-batches of a call
    assert "epoch 0: 4 calls of 400 images" in said
    assert "Gradient___fc3.bias" in said
    assert list(tmp_path.iterdir()) == [], "nothing is written unasked"


@pytest.mark.long
def test_the_same_program_stores_every_call_where_a_run_is_named(tmp_path):
    said = run_example(tmp_path, "--epochs", "1", ANCHOR_RUN="pop")
    bins, zero = counts(said)
    run = anchorlib.open_run("pop", tmp_path / "anchors")
    assert run.steps == list(range(8))
    last = [run.series(i.name, i.kind).where(steps=range(6, 8)).values() for i in run.tensors()]
    assert len(last) == 6
    values = np.concatenate([one.ravel() for one in last])
    assert zero == np.count_nonzero(values == 0)
    exponents = np.frexp(values[values != 0])[1] - 1
    assert bins == dict(zip(*np.unique(exponents, return_counts=True), strict=True))
