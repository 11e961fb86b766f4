"""The peak of a process's memory."""

from __future__ import annotations

import resource
from pathlib import Path

__all__ = ["peak_bytes"]


def peak_bytes() -> int:
    """The peak of this program's memory so far.

    `ru_maxrss` is no less than what the process had that began this one, before it did: Linux
    tells the program's own peak elsewhere.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
