"""gRPC is loaded by one module, which keeps it from stderr and from the program's forks."""

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
            print(os.environ.get("GRPC_VERBOSITY"), os.environ.get("GRPC_ENABLE_FORK_SUPPORT"))

sys.meta_path.insert(0, Asked())
import anchorlib.spool.earlier_attempts
import os
print(os.environ.get("GRPC_VERBOSITY"), os.environ.get("GRPC_ENABLE_FORK_SUPPORT"))
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
@pytest.mark.parametrize("forks", [None, "1"])
def test_it_is_quiet_and_leaves_forks_alone_unless_the_program_says_otherwise(forks):
    """The settings hold while gRPC is loaded, whichever module needs it first, and no longer."""
    ours = ("GRPC_VERBOSITY", "GRPC_ENABLE_FORK_SUPPORT")
    environment = {key: value for key, value in os.environ.items() if key not in ours}
    environment |= {"GRPC_ENABLE_FORK_SUPPORT": forks} if forks else {}
    told = subprocess.run(
        [sys.executable, "-c", FIRST], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.splitlines() == [f"ERROR {forks or 0}", f"None {forks}"]
