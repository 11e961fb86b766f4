"""`ANCHOR_WATCH` alone: an unedited program, started as always, is recorded."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import anchorlib
from tests.anchorlib.launch.launching import PLAIN

PACKAGE = Path(anchorlib.__file__).parent
LINE = PACKAGE / "launch" / "anchorlib_watch.pth"

WORKERS = (
    PLAIN.replace("for step", "def batches():\n    return torch.utils.data.DataLoader(\n"
                  "        torch.randn(48, 4), batch_size=16, num_workers=1,\n"
                  "        multiprocessing_context='spawn')\nfor step")
    .replace("range(3):\n    x = torch.randn(16, 4)", "[0]:\n  for x in batches():")
    .replace("\n    loss", "\n      loss").replace("\n    optimizer", "\n      optimizer")
)  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment of Python that has anchorlib, and what it takes, as installing leaves it."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    return place


def sites(installed):
    [own] = installed.glob("lib/python*/site-packages")
    return own


@pytest.fixture
def python(installed, bench):
    """Call this environment's Python; `package` is where its anchorlib lies."""

    def call(*words, package=PACKAGE, **environment):
        own = sites(installed)
        shutil.copy(LINE, own)
        others = [p for p in sys.path if p.endswith("site-packages")]
        (own / "_anchorlib.pth").write_text("\n".join([str(package.parent), *others]))
        interpreter = installed / "bin" / "python"
        return bench.call(
            interpreter, *words, PYTHONPATH=str(PACKAGE.parent / "cli"), **environment
        )

    return call


def test_a_program_that_knows_nothing_of_us_is_recorded_as_anchor_run_does(bench, warm, python):
    program = bench.program(PLAIN)
    alone = warm.python(program)
    done = python(program, ANCHOR_WATCH="0@grad, 2.weight@delta", ANCHOR_RUN="alone")
    assert (done.code, done.out) == (0, alone.out), done.err
    assert bench.names("alone") == {"0", "2.weight", "loss"}
    [last] = done.said
    assert last.startswith("anchor: run alone: 3 steps of 1 pass, ended by SGD; 9 records")
    assert bench.runs == ["alone"]


def test_without_torch_nothing_of_ours_is_loaded_and_without_the_variable_nothing_is_done(python):
    code = (
        "import sys\n"
        "names = [n for n in sys.modules if n.split('.')[0] in ('anchorlib', 'numpy', 'torch')]\n"
        "print(names, [type(f).__name__ for f in sys.meta_path if 'Torch' in type(f).__name__])"
    )
    assert python("-c", code).out == "[] []\n"
    assert python("-c", code, ANCHOR_WATCH="").out == "[] []\n"
    assert python("-c", code, ANCHOR_WATCH="*").out == "[] ['TorchFinder']\n"


@pytest.mark.long
def test_anchor_run_and_the_variable_together_record_once(bench, warm, python, installed):
    program = bench.program(PLAIN)
    words = ["-m", "anchor_cli", "run", "--name", "run1", "--", installed / "bin" / "python"]
    done = python(*words, program, ANCHOR_WATCH="0@grad")
    assert (done.code, done.out) == (0, warm.python(program).out)
    assert bench.runs == ["run1"]
    assert bench.names() == {"0", "loss"}
    assert len(done.said) == 1


def test_helpers_of_a_trainer_and_its_recorder_record_nothing(bench, python):
    program = bench.program("if __name__ == '__main__':" + WORKERS.replace("\n", "\n    "))
    done = python(program, ANCHOR_WATCH="*", ANCHOR_RUN="alone", ANCHOR_RECORDER="process")
    assert done.code == 0, done.err
    assert len(done.said) == 1, done.err
    assert bench.runs == ["alone"]
    assert len(bench.run("alone")["output@value"]) == 3


@pytest.mark.parametrize("broken", ["no package", "no hook", "a hook that fails", "no launch"])
def test_an_anchorlib_that_is_half_there_is_told_once_and_the_program_runs(
    bench, python, tmp_path, broken
):
    package = tmp_path / "partly" / "anchorlib"
    hook = package / "launch" / "hook" / "sitecustomize.py"
    if broken != "no package":
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    if broken in {"a hook that fails", "no launch"}:
        hook.parent.mkdir(parents=True)
        right = (PACKAGE / "launch" / "hook" / "sitecustomize.py").read_text()
        hook.write_text("raise OSError('half')" if "fails" in broken else right)
    (bench.place / "torch.py").write_text("value = 5\n")  # what it imports
    child = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import torch'])\n"
    program = bench.program("import torch\nprint(torch.value)\n" + child)
    done = python(program, package=package, ANCHOR_WATCH="*", ANCHOR_RUN="alone")
    assert (done.code, done.out) == (0, "5\n")
    assert "cannot load anchorlib" in done.err
    assert done.err.endswith(": the program runs unobserved\n")
    assert done.err.count("\n") == 1
    assert bench.runs == []
