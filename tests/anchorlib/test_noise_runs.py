"""The lines that make and use noise runs, and when a recorded command cannot be run again."""

from __future__ import annotations

import shlex
import sys

import numpy as np
import pytest

import anchorlib
from anchorlib.diagnosis.pairing.tables.table import Table
from anchorlib.noise_runs import coarsest, compare_line, noise_line
from anchorlib.store import Writer
from tests.cli.made import make_run, record

COLUMNS = (
    *("tensor", "step", "pass_index", "call", "phase", "attempt"),
    *("order", "count", "scale", "dtype", "shape", "digest", "kept"),
)


def table(header, dtypes=("float32",)):
    empty = np.empty(0, np.int64)
    return Table(
        run="eager",
        tensors=(),
        phases=(),
        dtypes=dtypes,
        shapes=(),
        **dict.fromkeys(COLUMNS, empty),
        figures={},
        edges={},
        header={0: header},
        gaps={},
        read=lambda row, size: iter(()),
    )


def test_the_line_runs_the_recorded_command_again():
    line = noise_line(table({"command": ["python", "train.py", "--name", "a b"]}), store="/runs")
    assert shlex.split(line) == [
        *("anchor", "noise", "eager", "--store", "/runs", "--"),
        *("python", "train.py", "--name", "a b"),
    ]


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"command": ["python", "train.py", "--token", "***"]},
        {"command": ["python", "train.py", "--token=***"]},
        {"command": ["python", "-c", "***"]},
        {"command": ["python", "train.py"], "env.WORLD_SIZE": "2"},
    ],
)
def test_a_command_that_cannot_be_run_again_is_left_to_the_user(header):
    assert noise_line(table(header)) == "anchor noise eager -- COMMAND…"


def test_a_coarser_type_in_the_other_run_is_what_the_noise_must_have():
    one, other = table({}), table({}, ("float32", "bfloat16", "float8_e4m3fn", "int64"))
    assert "--eps bfloat16" in noise_line(one, other)
    assert "--eps" not in noise_line(other, one)
    assert "--eps" not in noise_line(one, one)


def test_the_coarsest_type_is_that_of_the_largest_eps():
    assert coarsest(["float64", "float16", "bfloat16", "int64"]) == "bfloat16"
    assert coarsest(["float64"]) == "float64"
    assert coarsest([]) == "float32"


def test_the_line_to_compare_with_names_every_noise_run():
    line = compare_line("a", ["a-noise1", "a-noise2"])
    assert line == "anchor compare a OTHER --noise a-noise1 --noise a-noise2"


@pytest.mark.parametrize(
    ("command", "said"),
    [(["python", "t.py", "--token", "***"], "held a secret or code"), ([], "is not known")],
)
def test_without_a_command_a_header_that_hides_it_is_refused(tmp_path, command, said):
    Writer.open(tmp_path, "run1", 0, header={"command": command}).close()
    with pytest.raises(anchorlib.OptionError, match=said):
        anchorlib.noise(None, "run1", store=tmp_path)


@pytest.mark.slow
def test_a_run_named_by_its_path_finds_its_store(tmp_path):
    make_run(tmp_path, [record()])
    told = "import os; print(os.environ['ANCHOR_STORE'], os.environ['ANCHOR_RUN'])"
    said = tmp_path / "said"
    with said.open("w") as output, pytest.raises(anchorlib.CommandError, match="recorded no"):
        anchorlib.noise([sys.executable, "-c", told], str(tmp_path / "run1.zarr"), output=output)
    assert said.read_text().split() == [str(tmp_path), "run1"]
