"""Every example runs, and says what it is there to say."""

from __future__ import annotations

import gzip
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import anchorlib

EXAMPLES = Path(__file__).parent.parent / "examples"


def run_example(name, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *map(str, arguments)],
        env={k: v for k, v in os.environ.items() if not k.startswith("ANCHOR_")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_gradient_histogram_covers_every_batch_of_each_of_six_gradients(tmp_path):
    said = run_example("gradient_histogram.py", "--store", tmp_path, "--epochs", 1)
    run = anchorlib.open_run("digits", tmp_path)
    steps = -(-1797 // 100)
    assert run.steps == list(range(steps))
    elements = {"fc1": 784 * 320, "fc2": 320 * 100, "fc3": 100 * 10}
    outputs = {"fc1": 320, "fc2": 100, "fc3": 10}
    for layer in elements:
        for name, numel in (
            (f"{layer}.weight", elements[layer]),
            (f"{layer}.bias", outputs[layer]),
        ):
            histogram = run.histogram(f"{name}@grad")
            assert histogram.numel == steps * numel
            values = run[f"{name}@grad"].values()
            assert histogram.zero == np.count_nonzero(values == 0)
            exponents = np.frexp(values[values != 0])[1] - 1
            assert histogram.bins == dict(
                zip(*np.unique(exponents, return_counts=True), strict=True)
            )
            assert re.search(
                rf"^{re.escape(name)} +{histogram.numel:,} +{histogram.zero:,} ", said, re.MULTILINE
            )


def test_the_gradient_histogram_takes_mnist_from_a_folder(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (300, 28, 28), dtype=np.uint8)
    header = struct.pack(">IIII", 2051, 300, 28, 28)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(header + images.tobytes())
    labels = struct.pack(">II", 2049, 300) + bytes(n % 10 for n in range(300))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    said = run_example(
        "gradient_histogram.py", "--store", tmp_path / "s", "--epochs", 1, "--mnist", tmp_path
    )
    assert "on 300 images" in said


def test_sam_keeps_its_two_passes_apart(tmp_path):
    said = run_example("sam.py", "--store", tmp_path, "--steps", 4)
    assert "4 steps of two passes" in said
    columns = anchorlib.open_run("sam", tmp_path)["loss@value"].columns
    assert list(zip(columns["step"], columns["pass_index"], strict=True)) == [
        (step, pass_index) for step in range(4) for pass_index in range(2)
    ]


def test_two_ranks_stream_into_one_collector(tmp_path):
    said = run_example("remote_training.py", "--store", tmp_path, "--steps", 5)
    run = anchorlib.open_run("remote", tmp_path)
    assert run.ranks == [0, 1]
    for rank in run.ranks:
        assert len(run.series("loss", rank=rank)) == 5
        assert f"rank {rank}: 65 records" in said
    assert run.gaps() == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_every_example_is_tested(path):
    tests = Path(__file__).parent.rglob("test_*.py")
    assert path.name == "digits.py" or any(path.name in test.read_text() for test in tests)
