"""What all tests share: how hypothesis judges time, where spools go, which tests are slow."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# A slow example on a busy machine is no defect; figures belong into benchmarks/.
settings.register_profile("anchorlib", deadline=None)
settings.load_profile("anchorlib")

# Remote sessions spool below the user's cache: that of the tests is their own.
_cache = tempfile.TemporaryDirectory(prefix="anchorlib-tests-")
os.environ["XDG_CACHE_HOME"] = _cache.name

# A process for each of some thousand sessions would take most of the time; those that are about
# recorder processes ask for them.
os.environ["ANCHOR_RECORDER"] = "thread"

# A shell's background job ignores Ctrl-C, and so would every command that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Left out of `make check`, part of `make test`: processes, compilers, faults by the thousand.
SLOW = (
    "anchorlib/capture/compiled/",
    "anchorlib/capture/test_distributed.py",
    "anchorlib/capture/tracing/test_bits.py",
    "anchorlib/capture/tracing/test_ranks.py",
    "anchorlib/cluster/",
    "anchorlib/integrations/",
    "anchorlib/launch/",
    "anchorlib/poptorch/test_tutorial.py",
    "anchorlib/spool/test_delivery.py",
    "anchorlib/store/test_crash.py",
    "anchorlib/store/test_dying.py",
    "anchorlib/store/test_live.py",
    "cli/test_noise.py",
    "cli/test_pull.py",
    "cli/test_serve.py",
    "cli/test_verify.py",
    "delivery/",
    "page/",
    "security/",
    "server/",
    "test_examples.py",
    "test_flow.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests by where they are."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).as_posix().startswith(SLOW):
            item.add_marker(pytest.mark.slow)
