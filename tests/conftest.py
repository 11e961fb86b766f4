"""What all tests share: how many cases are drawn, where spools go, and that bytecode is kept.

What takes long says so itself: a test or a file by the marker `slow`, a folder in its conftest.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile

from tests.seeds import profiles

profiles()

# Without bytecode each run rewrites the assertions of 500 files anew, half of what collecting them
# takes, and each program that a test starts compiles ours anew. Many containers forbid it.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Remote sessions spool below the user's cache: that of the tests is their own.
_cache = tempfile.TemporaryDirectory(prefix="anchorlib-tests-")
os.environ["XDG_CACHE_HOME"] = _cache.name

# Two workers on two cores: threads of torch's would wait for each other. Tests of threads set them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Inductor compiles a program for each instruction set, seven seconds of a processor for each cache,
# only to see whether the compiler knows what the processor has.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# A process for each of some thousand sessions would take most of the time; those that are about
# recorder processes ask for them.
os.environ["ANCHOR_RECORDER"] = "thread"

# A shell's background job ignores Ctrl-C, and so would every command that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
