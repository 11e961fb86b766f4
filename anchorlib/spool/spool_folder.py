"""Where spools are, what their folders hold, and which process owns a spool.

<place>/<run>.rank<r>.<writer's claim>/
    spool.json                 the spool's label: its run, rank, writer and destination
    lock                       locked with flock by the process that owns the spool
    00000007.000000001234.seg  segment 7, whose first record is number 1234
    00000003.000000000400.bad  a damaged segment: kept, though its good records were delivered
    lost                       the numbers of records that are in no segment any more
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from anchorlib.claims import claim_of
from anchorlib.errors import RunBusyError
from anchorlib.names import escape
from anchorlib.store import holder

__all__ = [
    "SpoolLabel",
    "SpoolLock",
    "is_spool",
    "spool_place",
    "spools_of",
    "was_spool",
]

_CLAIM_DIGITS: Final = 32
LABEL: Final = "spool.json"
LOCK: Final = "lock"

_FOLDER: Final = re.compile(rf"(.+)\.rank(\d+)\.[0-9a-f]{{{_CLAIM_DIGITS}}}")


@dataclass(frozen=True, slots=True)
class SpoolLabel:
    """A spool's run, rank, writer and destination, as the file spool.json has them.

    writer_id: the writer's secret, in hex.
    to: the address of the collector that the spool goes to, of several collectors that at present.
    among: the URL that names all collectors if there are several; else "".
    created_ns: when the spool was made, in nanoseconds since the epoch.
    power: whether the spooled records have to survive power loss.
    """

    run: str
    rank: int
    writer_id: str
    to: str
    created_ns: int
    power: bool = False
    among: str = ""

    @property
    def folder(self) -> str:
        """The name of the spool's directory; it has a hash of the writer's id, which is secret."""
        claim = claim_of(bytes.fromhex(self.writer_id)).hex()
        return f"{self.run}.rank{self.rank}.{claim[:_CLAIM_DIGITS]}"

    def text(self) -> str:
        """Return the content of spool.json: the label's fields as a line of JSON."""
        return json.dumps({"format": "anchor-spool", "version": 1, **asdict(self)}) + "\n"

    def write(self, folder: Path) -> None:
        """Write this label as spool.json into the spool in `folder`, whole or not at all.

        Raises OSError if it cannot be written.
        """
        made = folder / f"{LABEL}.new"
        made.write_text(self.text(), encoding="utf-8")
        made.replace(folder / LABEL)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the label of the spool in `folder`; None if spool.json is missing or unreadable.

        Without the label no records are lost: segments say themselves which run they are of.
        """
        try:
            fields: dict[str, Any] = json.loads((folder / LABEL).read_text(encoding="utf-8"))
            return cls(
                str(fields["run"]),
                int(fields["rank"]),
                str(fields["writer_id"]),
                str(fields["to"]),
                int(fields["created_ns"]),
                bool(fields.get("power")),
                str(fields.get("among", "")),
            )
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None


def spool_place(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory for spools: ANCHOR_SPOOL, else a folder of the job or of the user.

    Without the variable the directory lies in the first of these that there is: Slurm's scratch
    folder; the user's cache, if it can be written; a folder of the user below the system's
    temporary directory. The directory is not made.
    """
    if variable := environ.get("ANCHOR_SPOOL"):
        return Path(variable)
    if scratch := environ.get("SLURM_TMPDIR"):
        return Path(scratch) / "anchorlib" / "spool"
    cache = environ.get("XDG_CACHE_HOME") or (
        f"{environ['HOME']}/.cache" if environ.get("HOME") else ""
    )
    if cache and os.access(cache if Path(cache).exists() else Path(cache).parent, os.W_OK):
        return Path(cache) / "anchorlib" / "spool"
    return Path(tempfile.gettempdir()) / f"anchorlib-{os.getuid()}" / "spool"


def is_spool(path: Path) -> bool:
    """Return whether `path` is a folder with a spool.json or segment files, that is, a spool."""
    return path.is_dir() and ((path / LABEL).exists() or any(path.glob("*.seg")))


def was_spool(path: Path) -> tuple[str, int] | None:
    """Return (run, rank) of a spool that was at `path` and is gone, as the name of `path` tells.

    Returns None if `path` exists, has not the form of a spool's name, or lies in no existing
    directory. This lets `anchor push` say that a spool is delivered already.
    """
    match = _FOLDER.fullmatch(path.name)
    if match is None or path.exists() or not path.absolute().parent.is_dir():
        return None
    return match[1], int(match[2])


def spools_of(place: Path, run: str, rank: int) -> Iterator[Path]:
    """Yield the folders of all spools of a rank below `place`, oldest first.

    Spools that a live process is still writing are among them; spools without a readable
    spool.json are not.
    """
    spools = []
    for path in place.glob(f"{run}.rank{rank}.*"):
        label = SpoolLabel.read(path)
        if label is not None and (label.run, label.rank) == (run, rank):
            spools.append((label.created_ns, path))
    yield from (path for _, path in sorted(spools))


class SpoolLock:
    """The lock of a spool, which its writer or deliverer holds from construction to `release`.

    Construction does not wait: it raises RunBusyError if another live process holds the lock, and
    OSError if the file system has no locks or the lock's file cannot be opened. A forked child does
    not hold the lock.
    """

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = holder(self._file)
            os.close(self._file)
            raise RunBusyError(
                f"the spool {escape(str(folder))} belongs to {who}, which is alive and delivers "
                "it; wait until it has ended"
            ) from None
        except OSError:  # a file system without locks
            os.close(self._file)
            raise
        _HELD.add(self)
        with contextlib.suppress(OSError):  # on a full disk the lock holds all the same
            owner = {"pid": os.getpid(), "host": socket.gethostname()}
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps(owner).encode(), 0)

    def release(self) -> None:
        """Unlock the spool; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            _HELD.discard(self)


_HELD: weakref.WeakSet[SpoolLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A forked child shares the lock, so a DataLoader's worker would keep it when the trainer died.
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
