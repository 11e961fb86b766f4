"""Finds the process that listens on a port of this machine, by Linux's /proc."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["listener"]

_LISTENING: Final = "0A"  # TCP_LISTEN in /proc/net/tcp


def listener(port: int, proc: Path = Path("/proc")) -> str:
    """Returns in words which process listens on a port, such as "process 4242 (anchor)".

    Returns "another process" where the system does not show which process it is (processes of other
    users are hidden), and where no process listens.
    """
    wanted = {f"socket:[{inode}]" for inode in _inodes(port, proc)}
    if wanted:
        for process in proc.glob("[0-9]*"):
            if _holds(process, wanted):
                return f"process {process.name} ({_name(process)})"
    return "another process"


def _inodes(port: int, proc: Path) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / table).read_text().splitlines()[1:]:
                parts = line.split()
                if parts[3] == _LISTENING and int(parts[1].rpartition(":")[2], 16) == port:
                    yield parts[9]


def _holds(process: Path, wanted: set[str]) -> bool:
    # The files of other users' processes cannot be read, and any process may end meanwhile.
    with suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                if str(descriptor.readlink()) in wanted:
                    return True
    return False


def _name(process: Path) -> str:
    with suppress(OSError):
        return (process / "comm").read_text().strip()
    return "ended"
