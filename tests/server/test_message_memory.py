"""Memory that messages arrive in."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from anchor_server.message_memory import keep_memory

if sys.argv[1] == "kept":
    keep_memory()

def messages():  # some megabytes each, a few at a time
    held = [b"x" * (4 << 20) for _ in range(6)]

messages()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    messages()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif("glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""), reason="glibc's way")
def test_what_a_collector_frees_it_uses_again():
    def faults(how: str) -> int:
        found = subprocess.run(
            [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True
        )
        return int(found.stdout)

    pages = 10 * 6 * (4 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert faults("kept") < pages / 20 < pages / 2 < faults("given back")
