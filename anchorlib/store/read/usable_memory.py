"""The memory that this process may use: that of the machine, or of its container."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["memory_here"]

_PROCESS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def memory_here(process: Path = _PROCESS, groups: Path = _GROUPS) -> int:
    """Return how many bytes of memory this process may use: the machine's, or its limit if lower.

    The limit is that of the Linux control groups (cgroups) of this process, as containers set it.

    process: the file that names the control groups of this process, each in a line
        "number:controllers:path".
    groups: the folder in which Linux shows the control groups of version 2; its subfolder "memory"
        has those of version 1.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = process.read_text().splitlines()
    except OSError:
        return machine
    return min([machine, *(limit for line in lines for limit in _limits(line, groups))])


def _limits(line: str, groups: Path) -> Iterator[int]:
    """Yield the memory limits, in bytes, of one control group and of all groups that contain it.

    line: the line of /proc/self/cgroup that names the group. Yield nothing for groups without a
        limit.
    """
    _, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if controllers and "memory" not in controllers.split(","):
        return
    top, name = (
        (groups / "memory", "memory.limit_in_bytes") if controllers else (groups, "memory.max")
    )
    own = path.strip("/").split("/")
    for depth in range(len(own) + 1):
        try:
            limit = top.joinpath(*own[:depth], name).read_text().strip()
        except OSError:  # a container sees its own group as the top one, under a path of outside
            continue
        if limit.isdecimal():  # "max" is no limit
            yield int(limit)
