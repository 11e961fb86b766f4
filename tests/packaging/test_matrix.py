"""What the matrix of Pythons says of installations, without making one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from tests.packaging import matrix
from tests.packaging.matrix import Environment, FailedError, Row, pythons_on_path, row, table


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A PATH that holds this Python as 3.11, and a 3.12 that is a name without an interpreter."""
    (tmp_path / "python3.11").symlink_to(sys.executable)
    for name, script in {"python3.12": "exit 127", "python3.9": "exit 0", "cc": "exit 0"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def environment(tmp_path):
    """An environment whose `python` writes its PATH, and whose `anchor` fails."""
    (tmp_path / "bin").mkdir()
    for name, script in {
        "python": 'echo "$PATH"',
        "anchor": "echo no such run >&2; exit 2",
    }.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    return Environment(tmp_path, str(tmp_path / "bin"))


@pytest.mark.usefixtures("path")
def test_the_pythons_that_are_tried_start_and_are_new_enough():
    assert pythons_on_path(">=3.11") == ["python3.11"]
    assert pythons_on_path(">=3.12") == []


def test_an_environment_sees_its_own_commands_alone(environment):
    assert environment.run("python").strip() == str(environment.folder / "bin")


def test_a_command_that_fails_is_told_by_its_last_line(environment):
    with pytest.raises(FailedError, match=r"^anchor names: no such run$"):
        environment.run("anchor", "names")
    assert environment.run("anchor", "compare", allowed=(2,)) == ""


def test_an_installation_that_fails_is_a_row_and_no_end(environment):
    (environment.folder / "bin" / "python").write_text(
        "#!/bin/sh\necho no matching distribution >&2\nexit 1\n", encoding="utf-8"
    )
    said = row(environment, [Path("a.whl")], environment.folder, argparse.Namespace(first=""))
    assert not said.passed
    assert said.demo == "python -m: no matching distribution"


def test_the_table_says_of_each_row_what_was_there_and_what_came_of_it():
    rows = [
        Row("3.11.7", "2.13.0", compiler=False, put="Python", demo="ran", passed=True),
        Row("3.12.1", "2.13.0", compiler=True, put="compiled", demo="the same bits", passed=True),
    ]
    assert table(rows).splitlines()[2:] == [
        "| 3.11.7 | 2.13.0 | no | Python | ran |",
        "| 3.12.1 | 2.13.0 | yes | compiled | the same bits |",
    ]


@pytest.mark.parametrize(("word", "said"), [("identical", "the same bits"), ("suspect", "suspect")])
def test_a_demo_of_other_bits_says_the_verdict(word, said):
    assert matrix.verdict({"verdict": word}) == said


def test_the_oldest_torch_is_the_one_that_is_admitted_and_pins_of_torch_do_not_hold(tmp_path):
    floor = next(one for one in matrix.PROJECT["project"]["dependencies"] if one[:5] == "torch")
    assert matrix.requirement("oldest") == f"{floor.replace('>=', '==')}.*"
    assert matrix.requirement("torch==2.9.*") == "torch==2.9.*"
    kept = matrix.without_torch([matrix.ROOT / "constraints.txt"], tmp_path).read_text().split()
    assert [line for line in kept if line.startswith(("torch==", "sympy=="))] == []
    assert {line.partition("==")[0] for line in kept} >= {"torchmetrics", "numpy", "zarr"}
