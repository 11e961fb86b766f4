"""Build hook that compiles the C function `_put.c` into the wheel where there is a C compiler.

The function copies small tensors into the recorder's ring; without it Python code does the same,
more slowly. So a failed compilation prints one line and is no error. ANCHORLIB_NO_EXTENSION=1 skips
the compilation.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("anchorlib/recorder/_put.c")
LEFT_OUT = "anchorlib's compiled put is left out, and the one in Python is used: "


class CompiledPut(BuildHookInterface):
    """The hook that hatchling runs for each wheel that it builds, editable ones too.

    For an editable wheel the compiled file is found in the source tree.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Compile `_put.c`, and have the wheel's file name state this interpreter and machine."""
        target = SOURCE.with_suffix(sysconfig.get_config_var("EXT_SUFFIX") or ".so")
        reason = compile_into(Path(self.root), target)
        if reason:
            self.app.display_warning(LEFT_OUT + reason)
            return
        build_data["artifacts"].append(target.as_posix())
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compile_into(root: Path, target: Path) -> str:
    """Compile `SOURCE` in `root` to `target`; return "" on success, or why it was not compiled."""
    # What an earlier build left would be imported, and might be of other sources.
    (root / target).unlink(missing_ok=True)
    if os.environ.get("ANCHORLIB_NO_EXTENSION", "0") not in {"", "0"}:
        return "ANCHORLIB_NO_EXTENSION is set"
    compiler = found_compiler()
    if compiler is None:
        return "there is no C compiler"
    apart = root / f"{target}.{os.getpid()}"
    shared = (
        ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    )
    options = ["-std=c11", "-O2", "-fPIC", *shared, f"-I{sysconfig.get_path('include')}"]
    command = [*compiler, *options, str(root / SOURCE), "-o", str(apart)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            apart.replace(root / target)
            return ""
    except OSError as error:
        return str(error)
    finally:
        apart.unlink(missing_ok=True)
    said = [line for line in done.stderr.splitlines() if "error" in line]
    return f"{shlex.join(compiler)}: {said[0] if said else 'it failed'}"


def found_compiler() -> list[str] | None:
    """Return the C compiler that $CC names, that built this Python, or `cc`; None without any."""
    for command in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc"):
        words = shlex.split(command or "")
        if words and shutil.which(words[0]):
            return words
    return None
