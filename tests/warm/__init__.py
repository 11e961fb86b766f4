"""A Python that has torch loaded: programs of tests start in it at once, for what is theirs alone.

Importing torch and what its first optimizer imports takes two seconds of a processor, and hundreds
of tests would pay them. So one process of each worker imports them once (`parent`) and forks for
each program, and what tests call as Python (`python`, a command) asks it to and becomes what the
child came to. All else is as in any Python: directory, environment, `sitecustomize`, options,
streams, exit code, the end of the interpreter; and what it starts by `sys.executable` is as warm.
What a process does before or while it imports torch is tested in `sys.executable` of the tests.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["warm_python"]

_HERE = Path(__file__).parent


@functools.cache
def warm_python(*modules: str) -> str:
    """The path of the command, which is called like Python; its parent ends with this process.

    In its folder stands `torchrun` too, for what finds both by the PATH.

    modules: what its programs import besides torch and takes long. It needs Linux's handles of
    processes; elsewhere programs start as ever.
    """
    if sys.platform != "linux":
        return sys.executable
    command, parent = _started()
    if modules:
        _wait_for(parent, f"{' '.join(modules)}\n")
    return command


@functools.cache
def _started() -> tuple[str, subprocess.Popen[bytes]]:
    """The path of the command, and the process that forks for it."""
    folder = Path(tempfile.mkdtemp(prefix="anchorlib-warm-"))
    address = folder / "parent"
    # What has threads cannot fork; and a pool of compilers takes longer to start than it saves.
    alone = dict.fromkeys(
        ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"], "1"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ANCHOR_")}
    parent = subprocess.Popen(
        [sys.executable, str(_HERE / "parent.py"), str(address)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=folder,
        env=clean | alone,
        start_new_session=True,  # Ctrl-C is for the tests
    )
    atexit.register(_end, parent, folder)
    _wait_for(parent)
    words = [sys.executable, "-S", str(_HERE / "child.py"), str(address)]
    for name, more in (("python", []), ("torchrun", ["-m", "torch.distributed.run"])):
        command = folder / name
        command.write_text(f'#!/bin/sh\nexec {shlex.join([*words, *more])} "$@"\n')
        command.chmod(0o755)
    return str(folder / "python"), parent


def _wait_for(parent: subprocess.Popen[bytes], asked: str = "") -> None:
    """Until it has loaded what it was asked to."""
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(asked.encode())
    parent.stdin.flush()
    assert parent.stdout.readline() == b"ready\n"


def _end(parent: subprocess.Popen[bytes], folder: Path) -> None:
    with parent:  # which closes its pipes, and waits
        parent.kill()
    for path in (*folder.iterdir(), folder):
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink()
