"""docs/integrations.md: each Python block is a program that runs; each command is an example's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BLOCKS = re.findall(
    r"^```(\w+)\n(.*?)^```$",
    (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)
PROGRAMS = [code for language, code in BLOCKS if language == "python"]
FRAMEWORKS = ("lightning", "pytorch_lightning", "transformers", "accelerate")


def test_every_block_is_a_program_or_commands():
    assert {language for language, _ in BLOCKS} == {"python", "console"}
    assert len(PROGRAMS) == 3


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging")
@pytest.mark.parametrize(
    "code", PROGRAMS, ids=lambda code: re.search(r"integrations\.(\w+)", code)[1]
)
def test_each_program_on_the_page_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/integrations.md", "exec"), {"__name__": "__main__"})
    assert len(list((tmp_path / "anchors").glob("*.zarr"))) == 1


def test_each_command_on_the_page_is_one_of_the_example():
    told = (ROOT / "examples" / "torchrun.py").read_text(encoding="utf-8")
    told = re.sub(r"\s*\\\\\n\s*", " ", told)
    commands = [line[2:] for language, code in BLOCKS if language == "console"
                for line in code.splitlines()]  # fmt: skip
    assert len(commands) == 2
    for command in commands:
        assert command in told


def test_anchorlib_imports_no_framework():
    asked = f"""
import sys
import anchorlib.capture, anchorlib.integrations.accelerate, anchorlib.integrations.training
print([name for name in {FRAMEWORKS} if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
