"""What all tests share: how many cases are drawn, where spools go, and that bytecode is kept.

What takes long says so itself: a test or a file by the marker `slow` or `long`, a folder of slow
tests in its conftest.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from importlib import import_module

import pytest

from tests.places import own_place
from tests.seeds import profiles
from tests.tiers import (
    pytest_deselected,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)

__all__ = [
    "pytest_deselected",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
]

profiles()

# Without bytecode each run rewrites the assertions of 500 files anew, half of what collecting them
# takes, and each program that a test starts compiles ours anew. Many containers forbid it.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What tests and their programs leave in a temporary folder goes at the end, and remote sessions
# spool below the user's cache: that of the tests is their own.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="cache-", dir=own_place())

# Whoever loads gRPC first decides what it does in forked processes: here that is as in a training.
import_module("anchorlib.wire.connection.loading")

# Two workers on two cores: threads of torch's would wait for each other. Tests of threads set them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Inductor compiles a program for each instruction set, seven seconds of a processor for each cache,
# only to see whether the compiler knows what the processor has.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# To start Inductor's pool of compilers takes longer than the little that the tests compile. Its
# cache is in the temporary folder of the run, so that its processes compile a kernel, and ten
# seconds of C++ headers, once between them.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# A process for each of some thousand sessions would take most of the time; those that are about
# recorder processes ask for them.
os.environ["ANCHOR_RECORDER"] = "thread"

# A shell's background job ignores Ctrl-C, and so would every command that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _what_a_long_process_pays_often() -> Iterator[None]:
    """Ask git for the commit once, not for each of thousands of sessions, and compile no scans.

    A process compiles them when it has summarised half a gigabyte, which all tests together do:
    those about compiled scans take `tests.scans`, or lower the limit. Who waits for them, as
    `anchor doctor` does, is given those that the processes of this run compiled once between them.
    """
    from anchorlib.capture.headers import header
    from anchorlib.summary import compiled
    from tests.scans import loaded_scans

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(header, "_git_commit", functools.cache(header._git_commit))
        patch.setattr(compiled, "WORTH", 1 << 62)
        patch.setattr(compiled.SCANS, "load", lambda: loaded_scans().load())
        yield


def pytest_collectstart() -> None:
    """Collect no garbage until all tests are imported, and leave what was imported out of it then.

    A million objects of torch's take half a second of a processor to look through, whenever Python
    or a test collects garbage. The process that has pytest-xdist's workers collects no tests, so
    that its collector is left as it is.
    """
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests go first: what is left at the end is short, for both workers."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Collect garbage from here on: what tests make, not what they import.

    Torch's compilers, another half a million objects, are imported before where tests use them. And
    garbage is collected seldom: what tests make is little, and those about garbage collect it.
    """
    if any("compiled" in item.path.parts for item in session.items):
        _import_compilers()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def _import_compilers() -> None:
    """Import torch's compilers, and have none of them measure how fast its guards are.

    Before it measures the guards of a function that it compiled, Dynamo empties the processor's
    caches, which takes 25 ms of each function.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of what torch imports
        import torch._dynamo.guards as guards
        import torch._inductor.compile_fx  # noqa: F401

    vars(guards)["profile_guard_manager"] = lambda *_: 0.0
