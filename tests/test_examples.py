"""Every example runs, and says what it is there to say."""

from __future__ import annotations

import gzip
import os
import re
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

import anchorlib
from tests.recording import trouble
from tests.warm import warm_python

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"


def python():
    """One that has loaded what the examples take their digits from."""
    return warm_python("sklearn.datasets")


def run_example(name, *arguments):
    done = subprocess.run(
        [python(), "-W", "error", str(EXAMPLES / name), *map(str, arguments)],
        env={k: v for k, v in os.environ.items() if not k.startswith("ANCHOR_")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert trouble(done.stderr) == ""
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


def verdicts(said):
    """Of each comparison of sam_divergence: the verdict and its sentence."""
    parts = said.split("$ anchor compare ")[1:]
    found = {}
    for part in parts:
        line = next(line for line in part.splitlines() if re.match(r"[A-Z]+  The ", line))
        sentence = " ".join(part[part.index(line) :].partition("FIRST DIVERGENCE")[0].split())
        found[part.split()[2]] = sentence.split(" ", 1)
    return found


def operations(said):
    """The operations of a table of `anchor ops`."""
    return re.findall(r"backward +tanh3 +(\S+)", said)


@pytest.mark.long
def test_sam_divergence_tells_where_which_operation_which_formula_and_whether_it_matters(tmp_path):
    plot = tmp_path / "losses.png"
    said = run_example("sam_divergence.py", "--store", tmp_path, "--fast", "--plot", plot)
    found = verdicts(said)
    assert list(found) == ["decomposed", "buggy"]
    for run, verdict, kind in (
        ("decomposed", "EXPECTED", "rounding"),
        ("buggy", "UNEXPECTED", "more than rounding"),
    ):
        told, sentence = found[run]
        assert told == verdict
        assert "at step 0, pass 0: the gradient of fc3 (TanhBackward0)" in sentence
        assert f"bit-identical: {kind}" in sentence
    told = " ".join(said.split())
    assert "A computes g*fma(-y, y, 1), B g*(1 - y*y)" in told
    assert "REFERENCE float64: how far A and B are from it" in told
    kernel, decomposed = said.partition("$ anchor ops kernel ")[2].split("$ anchor ops decomposed ")
    assert operations(kernel) == ["detach", "tanh_backward"] * 2
    assert operations(decomposed) == ["detach", "mul.Tensor", "rsub.Scalar", "mul.Tensor"] * 2
    noise = [f"kernel-noise{seed}" for seed in (1, 2, 3)]
    found = anchorlib.compare("kernel", "decomposed", store=tmp_path, noise=noise)
    assert found.verdict == "expected"
    assert {(o.place.name, o.place.kind, o.cls) for o in found.origins} == {
        ("fc3", "grad", "rounding")
    }
    assert "<title>" in plot.with_suffix(".html").read_text(encoding="utf-8")
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_two_ranks_stream_into_one_collector(tmp_path):
    said = run_example("remote_training.py", "--store", tmp_path, "--steps", 5)
    run = anchorlib.open_run("remote", tmp_path)
    assert run.ranks == [0, 1]
    for rank in run.ranks:
        assert len(run.series("loss", rank=rank)) == 5
        assert f"rank {rank}: 65 records" in said
    assert run.gaps() == []


def torchrun(*arguments, **environment):
    """Two ranks of examples/torchrun.py; what they said, and what torchrun warned of."""
    job = ("ANCHOR_", "TORCHELASTIC_", "SLURM_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(job)}
    done = subprocess.run(
        [python(), "-m", "torch.distributed.run", "--nproc-per-node", "2", *arguments],
        env={**clean, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.long
def test_torchrun_names_the_run_and_the_ranks(tmp_path):
    said, warned = torchrun(str(EXAMPLES / "torchrun.py"), "--store", str(tmp_path), "--steps", "4")
    assert trouble(warned) == ""
    [place] = tmp_path.glob("*.zarr")
    run = anchorlib.open_run(place.stem, tmp_path)
    assert re.fullmatch(r"[0-9a-f-]{36}", run.name)  # torchrun's own id for the job
    assert run.ranks == [0, 1]
    losses = [run.series("loss", rank=rank).values() for rank in run.ranks]
    assert not np.array_equal(*losses)  # each has its share of the data
    for rank in run.ranks:
        last = losses[rank][-1]
        assert f"{run.name} rank {rank}: 4 steps, last loss {last:.4f}" in said
    consumed = [run.series("0.weight", "grad", rank=rank).values() for rank in run.ranks]
    np.testing.assert_array_equal(*consumed)  # DDP's average


@pytest.mark.long
def test_ranks_that_torchrun_starts_again_go_on_as_the_next_attempt(tmp_path):
    arguments = ["--store", str(tmp_path), "--checkpoint", str(tmp_path / "job1.pt")]
    torchrun(
        "--max-restarts", "1", str(EXAMPLES / "torchrun.py"), *arguments, "--fail-at", "2",
        "--steps", "6", ANCHOR_RUN="job1",
        # Else ranks may meet addresses of dead ones in the store that torchrun shares.
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
    )  # fmt: skip
    run = anchorlib.open_run("job1", tmp_path)
    assert run.ranks == [0, 1]
    for rank in run.ranks:
        columns = run.series("loss", rank=rank).columns
        assert columns["step"].tolist() == [0, 1, 2, 3, 4, 5]
        assert columns["attempt"].tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_every_example_is_tested(path):
    tests = Path(__file__).parent.rglob("test_*.py")
    assert path.name == "digits.py" or any(path.name in test.read_text() for test in tests)
