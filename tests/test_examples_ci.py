"""examples/ci: a refactor that changes bits fails, one that does not passes."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from tests.warm import warm_python

CI = Path(__file__).parents[1] / "examples" / "ci"
SCRIPT = "torch.tanh(self.fc1(x)) * 0.1)"
REFACTORED = "self.activated(x))\n\n    def activated(self, x):\n        return {}"
SAME = REFACTORED.format("self.fc1(x).tanh().mul(0.1)")
OTHER = REFACTORED.format("self.fc1(x).tanh() / 10.0")

pytestmark = pytest.mark.slow


def path_of_commands():
    """`python` is a warm one, `anchor` what is installed."""
    folders = [str(Path(python).parent) for python in (warm_python(), sys.executable)]
    return os.pathsep.join([*folders, os.environ["PATH"]])


def checkout(folder, change=SCRIPT):
    folder.mkdir()
    text = (CI / "train.py").read_text(encoding="utf-8")
    assert text.count(SCRIPT) == 1
    (folder / "train.py").write_text(text.replace(SCRIPT, change), encoding="utf-8")


def checked(folder, *options, command=("python", "train.py"), **variables):
    """What the script answers about the checkouts base and head in `folder`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GITHUB_")}
    path = path_of_commands()
    return subprocess.run(
        [sys.executable, CI / "same_bits.py", "base", "head", *options, "--", *command],
        cwd=folder, env={**kept, "PATH": path, **variables}, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip


def test_a_refactor_that_keeps_the_bits_passes(tmp_path):
    checkout(tmp_path / "base")
    checkout(tmp_path / "head", SAME)
    done = checked(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "IDENTICAL" in done.stdout
    assert "::" not in done.stdout
    suite = ET.parse(tmp_path / "same-bits" / "compare.xml").getroot()[0]
    assert suite.attrib["failures"] == "0"
    assert int(suite.attrib["tests"]) > 20


def test_a_refactor_that_changes_bits_fails_and_annotates_the_pull_request(tmp_path):
    checkout(tmp_path / "base")
    checkout(tmp_path / "head", OTHER)
    summary = tmp_path / "summary.md"
    done = checked(tmp_path, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary))
    assert done.returncode == 1, done.stdout + done.stderr
    [first, *_] = [line for line in done.stdout.splitlines() if line.startswith("::error ")]
    assert first.startswith("::error title=anchor%3A SUSPECT::The runs part at step 0, pass 0: ")
    assert "fc2 (AddmmBackward0, " in first
    assert summary.read_text(encoding="utf-8").startswith("<h3>anchor: SUSPECT of base and head")
    suite = ET.parse(tmp_path / "same-bits" / "compare.xml").getroot()[0]
    assert int(suite.attrib["failures"]) >= 2
    assert "<script" in (tmp_path / "same-bits" / "compare.html").read_text(encoding="utf-8")


def test_a_training_that_fails_is_no_verdict(tmp_path):
    checkout(tmp_path / "base")
    checkout(tmp_path / "head")
    done = checked(tmp_path, command=("python", "-c", "raise SystemExit(7)"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "same_bits: the training of base ended with exit code 7\n"
    (tmp_path / "same-bits").mkdir()
    assert "is there already" in checked(tmp_path).stderr


@pytest.mark.long
def test_the_workflow_calls_the_script_as_it_is(tmp_path):
    steps = yaml.safe_load((CI / "same-bits.yml").read_text(encoding="utf-8"))["jobs"]["same-bits"][
        "steps"
    ]
    [line] = [step["run"] for step in steps if "same_bits.py" in step.get("run", "")]
    work = tmp_path / "work"
    work.mkdir()
    checkout(work / "base")
    (work / "base" / "net.py").write_text("")
    shutil.copytree(CI, work / "head" / "ci")
    path = path_of_commands()
    done = subprocess.run(
        ["bash", "-c", line], cwd=work, env={**os.environ, "PATH": path}, capture_output=True,
        text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    [uploaded] = [step["with"]["path"] for step in steps if "upload" in step.get("uses", "")]
    for name in shlex.split(uploaded):
        assert (work / name).is_file()
