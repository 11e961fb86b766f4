"""A file system that forgets: what was not synced is lost when the power goes.

    python -m tests.delivery.forgetful MOUNTPOINT

All of it is in memory. A file's bytes last once the file was synced, and names (also new ones, and
those that went) once their folder was. `mkdir MOUNTPOINT/.power-lost-SEED` is the power loss: of
what was not synced each page, size and name is kept or forgotten by chance, as disks do; with seed
0 all of it is forgotten.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PAGE = 4096
LOSS = "/.power-lost-"


@dataclass(eq=False)
class File:
    """A file: its bytes as programs see them, and as the disk has them."""

    mode: int
    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)

    def write(self, data: bytes, offset: int) -> None:
        self.resize(max(len(self.data), offset + len(data)))
        self.data[offset : offset + len(data)] = data
        self.dirty.update(range(offset // PAGE, (offset + len(data) - 1) // PAGE + 1))

    def resize(self, size: int) -> None:
        if size < len(self.data):
            self.dirty.update(range(size // PAGE, len(self.data) // PAGE + 1))
            del self.data[size:]
        else:
            self.data.extend(bytes(size - len(self.data)))

    def sync(self) -> None:
        self._keep(self.dirty, len(self.data))

    def lose(self, chance: random.Random | None) -> None:
        """Lose power; without `chance` everything that was not synced is lost."""
        kept: set[int] = set()
        size = len(self.durable)
        if chance is not None:
            kept = {page for page in sorted(self.dirty) if chance.random() < 0.5}
            size = chance.choice([size, len(self.data)])
        self._keep(kept, size)
        self.data = bytearray(self.durable)

    def _keep(self, pages: set[int], size: int) -> None:
        grown = self.durable[:size] + bytes(max(0, size - len(self.durable)))
        for page in pages:
            part = self.data[page * PAGE : min((page + 1) * PAGE, size)]
            grown[page * PAGE : page * PAGE + len(part)] = part
        self.durable = grown
        self.dirty = set()


@dataclass(eq=False)
class Folder:
    """A folder: its names as programs see them, and as the disk has them."""

    mode: int
    entries: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)

    def sync(self) -> None:
        self.durable = dict(self.entries)

    def lose(self, chance: random.Random | None) -> None:
        names = self.entries.keys() | self.durable.keys()
        changed = [name for name in names if self.entries.get(name) is not self.durable.get(name)]
        for name in sorted(changed):
            if chance is None or chance.random() < 0.5:
                continue
            if name in self.entries:
                self.durable[name] = self.entries[name]
            else:
                del self.durable[name]
        self.entries = dict(self.durable)
        for node in self.entries.values():
            node.lose(chance)


def operations(base: type) -> Any:  # noqa: C901  # one short method a call of the kernel's
    """The file system, for mfusepy."""

    def fault(code: int) -> OSError:
        return OSError(code, os.strerror(code))

    class Forgetful(base):  # type: ignore[misc]
        use_ns = True

        def __init__(self) -> None:
            self.root = Folder(0o755)
            self.open_files: dict[int, File] = {}
            self.next_handle = 1

        def _find(self, path: str) -> File | Folder:
            node: File | Folder = self.root
            for part in filter(None, path.split("/")):
                if not isinstance(node, Folder):
                    raise fault(errno.ENOTDIR)
                if part not in node.entries:
                    raise fault(errno.ENOENT)
                node = node.entries[part]
            return node

        def _file(self, path: str, handle: int | None = None) -> File:
            node = self.open_files.get(handle or 0) or self._find(path)
            if not isinstance(node, File):
                raise fault(errno.EISDIR)
            return node

        def _home(self, path: str) -> tuple[Folder, str]:
            folder, _, name = path.rpartition("/")
            node = self._find(folder)
            if not isinstance(node, Folder):
                raise fault(errno.ENOTDIR)
            return node, name

        def _opened(self, node: File) -> int:
            self.next_handle += 1
            self.open_files[self.next_handle] = node
            return self.next_handle

        def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
            node = self.open_files.get(fh or 0) or self._find(path)
            kind = stat.S_IFREG if isinstance(node, File) else stat.S_IFDIR
            size = len(node.data) if isinstance(node, File) else 0
            now = time.time_ns()
            times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), now)
            owner = {"st_uid": os.getuid(), "st_gid": os.getgid()}
            return {"st_mode": kind | node.mode, "st_nlink": 1, "st_size": size} | times | owner

        def readdir(self, path: str, fh: int) -> list[str]:
            node = self._find(path)
            return [".", "..", *(node.entries if isinstance(node, Folder) else ())]

        def mkdir(self, path: str, mode: int) -> int:
            if path.startswith(LOSS):
                seed = int(path.removeprefix(LOSS))
                self.root.lose(random.Random(seed) if seed else None)
                raise fault(errno.ECANCELED)
            home, name = self._home(path)
            if name in home.entries:
                raise fault(errno.EEXIST)
            home.entries[name] = Folder(mode & 0o7777)
            return 0

        def create(self, path: str, mode: int, fi: object = None) -> int:
            home, name = self._home(path)
            made = home.entries[name] = File(mode & 0o7777)
            return self._opened(made)

        def open(self, path: str, flags: int) -> int:
            node = self._file(path)
            if flags & os.O_TRUNC:
                node.resize(0)
            return self._opened(node)

        def release(self, path: str, fh: int) -> int:
            self.open_files.pop(fh, None)
            return 0

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return bytes(self._file(path, fh).data[offset : offset + size])

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            self._file(path, fh).write(data, offset)
            return len(data)

        def truncate(self, path: str, length: int, fh: int | None = None) -> int:
            self._file(path, fh).resize(length)
            return 0

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            self._file(path, fh).sync()
            return 0

        def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
            self._find(path).sync()
            return 0

        def unlink(self, path: str) -> int:
            home, name = self._home(path)
            del home.entries[name]
            return 0

        rmdir = unlink

        def rename(self, old: str, new: str) -> int:
            home, name = self._home(old)
            there, called = self._home(new)
            standing = there.entries.get(called)
            if isinstance(standing, Folder) and standing.entries:
                raise fault(errno.ENOTEMPTY)
            there.entries[called] = home.entries.pop(name)
            return 0

        def chmod(self, path: str, mode: int) -> int:
            self._find(path).mode = mode & 0o7777
            return 0

        def utimens(self, path: str, times: object = None) -> int:
            return 0

        def statfs(self, path: str) -> dict[str, int]:
            room = {"f_blocks": 1 << 22, "f_bfree": 1 << 22, "f_bavail": 1 << 22}
            return {"f_bsize": PAGE, "f_frsize": PAGE, "f_namemax": 255} | room

    return Forgetful()


def lose_power(mounted: Path, seed: int) -> None:
    """Lose power: data that was not synced is forgotten, all of it or (seed > 0) by chance."""
    with contextlib.suppress(OSError):
        (mounted / f"{LOSS[1:]}{seed}").mkdir()


@contextlib.contextmanager
def forgetful(mountpoint: Path) -> Iterator[Path]:
    """Mount the file system in this context; skip the test where nothing can be mounted."""
    if not Path("/dev/fuse").exists():
        pytest.skip("power loss is not tested: there is no /dev/fuse here")
    try:
        import mfusepy  # noqa: F401  # loads libfuse
    except (ImportError, OSError) as error:
        why = " ".join(str(error).split())
        pytest.skip(f"power loss is not tested: apt-get install libfuse2 ({why})")
    mountpoint.mkdir()
    command = [sys.executable, "-m", "tests.delivery.forgetful", str(mountpoint)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 20
        while not os.path.ismount(mountpoint):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                why = " ".join(process.communicate()[1][-300:].split())
                pytest.skip(f"power loss is not tested: nothing can be mounted here ({why})")
            time.sleep(0.02)
        yield mountpoint
    finally:
        subprocess.run(["umount", "-l", str(mountpoint)], check=False, capture_output=True)
        process.kill()
        process.communicate()


def main(mountpoint: str) -> None:
    """Serve the file system until it is unmounted."""
    from mfusepy import FUSE, Operations  # where it is missing, tests skip

    options: dict[str, Any] = {"direct_io": True, "attr_timeout": 0, "entry_timeout": 0}
    FUSE(
        operations(Operations), mountpoint, foreground=True, nothreads=True, negative_timeout=0,
        hard_remove=True, **options,
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
