"""gRPC is loaded by one module, which keeps its core from writing to a program's stderr."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import anchorlib

PACKAGE = Path(anchorlib.__file__).parent

FIRST = """
import sys

class Asked:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            import os
            print(os.environ.get("GRPC_VERBOSITY"))

sys.meta_path.insert(0, Asked())
import anchorlib.spool.earlier_attempts
"""


def imported(text: str) -> set[str]:
    """The top packages that the import statements of a module name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def test_no_other_module_of_the_package_loads_grpc():
    loading = {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        if "grpc" in (text := file.read_text())  # reading a tree takes long, and most say nothing
        if "grpc" in imported(text) and "v1" not in file.parts
    }
    assert loading == {"wire/connection/loading.py"}


@pytest.mark.slow
def test_its_core_is_quiet_whichever_module_needs_it_first():
    environment = {k: v for k, v in os.environ.items() if k != "GRPC_VERBOSITY"}
    told = subprocess.run(
        [sys.executable, "-c", FIRST], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout == "ERROR\n"
