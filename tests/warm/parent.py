"""The process that has torch loaded, and forks a child for each program.

A line on its stdin names further modules to load. It ends with the process that started it, whose
end of its stdin closes then.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import multiprocessing.process
import os
import select
import signal
import socket
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from importlib.machinery import PathFinder, SourceFileLoader
from typing import Any


def main() -> None:
    """Serve until stdin ends; in a child, run its program, and return when that has ended."""
    # The first step of an optimizer imports torch._dynamo; whatever is recorded is written by zarr.
    _load(["torch", "torch._dynamo", "zarr"])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        line = _asked(listener)
    if line is not None:
        _begin(line)


def _load(names: list[str]) -> None:
    """Import modules for all children to come, and say that it is done."""
    for name in names:
        importlib.import_module(name)
    assert sys.modules["torch"].get_num_threads() == 1
    assert _threads() <= {"jemalloc_bg_thd"}, "no thread lives on in a child, but jemalloc's own"
    assert "anchorlib" not in sys.modules
    gc.freeze()  # or the first collection of each child would copy all of it
    print("ready", flush=True)


def _threads() -> set[str]:
    """The names of the threads beside this one."""
    others = {number for number in os.listdir("/proc/self/task") if int(number) != os.getpid()}  # noqa: PTH208
    names = set()
    for number in others:
        with open(f"/proc/self/task/{number}/comm") as file:  # noqa: PTH123  # as os.listdir
            names.add(file.read().strip())
    return names


def _asked(listener: socket.socket) -> socket.socket | None:
    """In a child, the line of who asked for it; None in the parent, at its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if listener not in ready:
            names = os.read(0, 4096).decode().split()
            if not names:
                return None
            _load(names)
            continue
        line, _ = listener.accept()
        if os.fork() == 0:
            return line
        line.close()


def _begin(line: socket.socket) -> None:
    """Wait for a child as whoever asked would, and tell how it ended; the child runs."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(line, 1, 3)
    asked = json.loads(line.makefile().readline())
    child = os.fork()
    if child:
        os.closerange(0, 3)
        for stream in streams:
            os.close(stream)
        ended = os.pidfd_open(child)
        ready, _, _ = select.select([ended, line], [], [])
        if ended not in ready:  # nobody waits for it any more
            os.kill(child, signal.SIGKILL)
        line.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())
        os._exit(0)
    line.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _end(_ended(asked))


def _ended(asked: dict[str, Any]) -> int:
    """The exit code of the program that was asked for."""
    try:
        _become(**asked)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001  # as the interpreter does
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _end(code: int) -> None:
    """End as an interpreter does, but leave memory to the system: all of torch lies in it."""
    threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter calls
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code & 0xFF)


def _become(words: list[str], directory: str, environment: dict[str, str]) -> None:
    """Be the Python that was called with `words`, and run its program."""
    os.chdir(directory)
    multiprocessing.process.ORIGINAL_DIR = directory  # where a spawned child looks for the program
    os.environ.clear()
    os.environ.update(environment)
    _open_streams()
    sys.orig_argv[:] = [_typed(environment), *words]
    sys.executable = f"{os.path.dirname(sys.argv[1])}/python"  # noqa: PTH120  # what it starts is warm too
    for chosen in filter(None, environment.get("PYTHONWARNINGS", "").split(",")):
        _warn(chosen)
    how, program, arguments = _parsed(iter(words))
    own = sys.path[1:]  # without this file's folder
    sys.path[:] = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p] + own
    if PathFinder.find_spec("sitecustomize", sys.path):
        importlib.import_module("sitecustomize")
    sys.argv[:] = [program, *arguments] if how != "-c" else ["-c", *arguments]
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    if how == "-m":
        import runpy

        sys.path.insert(0, directory)
        runpy._run_module_as_main(program)  # type: ignore[attr-defined]  # what python -m calls
        return
    if how == "-c":
        sys.path.insert(0, "")
        exec(compile(program, "<string>", "exec"), module.__dict__)
        return
    sys.path.insert(0, os.path.dirname(os.path.realpath(program)))  # noqa: PTH120
    module.__file__ = program
    module.__loader__ = SourceFileLoader("__main__", program)
    with io.open_code(os.path.abspath(program)) as file:  # noqa: PTH100
        exec(compile(file.read(), program, "exec"), module.__dict__)


def _typed(environment: dict[str, str]) -> str:
    """What the command was called by: its path, or its name where it is found by that."""
    folder = os.path.dirname(sys.argv[1])  # noqa: PTH120
    found = folder in environment.get("PATH", "").split(os.pathsep)
    return "python" if found else f"{folder}/python"


def _open_streams() -> None:
    """The parent's have its buffers, and its word for whether they lead to a terminal."""
    for stream in ("stdin", "stdout", "stderr"):
        number = getattr(sys, f"__{stream}__").fileno()
        by_line = stream == "stderr" or os.isatty(number)
        opened = open(  # noqa: SIM115
            number,
            "r" if stream == "stdin" else "w",
            1 if by_line else -1,
            errors="backslashreplace" if stream == "stderr" else None,
            closefd=False,
        )
        setattr(sys, stream, opened)
        setattr(sys, f"__{stream}__", opened)


def _parsed(words: Iterator[str]) -> tuple[str, str, list[Any]]:
    """How a program is given (-c, -m or a path), it, and what follows; -W and -u act at once."""
    for word in words:
        if word == "-W":
            _warn(next(words))
        elif word in ("-c", "-m"):
            return word, next(words), list(words)
        elif word != "-u":
            return "", word, list(words)
    raise AssertionError("a warm Python runs a program")


def _warn(chosen: str) -> None:
    """Take one choice of what becomes of warnings: of -W or of PYTHONWARNINGS."""
    sys.warnoptions.append(chosen)
    warnings._processoptions([chosen])  # type: ignore[attr-defined]  # what Python calls


if __name__ == "__main__":
    main()
