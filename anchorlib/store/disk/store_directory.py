"""Makes the directory of a store, as a rule with access for its owner alone.

A store names tensors, commands and hosts, which are private by default. An existing store keeps its
mode, whatever that is. A new store gets one of these modes:

    0700                    as a rule
    0770 less the umask     where the umask lets the group write (002, 007), or where the folder
                            above the store belongs to a group: it is setgid, or writable by its
                            group and not by everyone
    what the ACL says       where the folder above the store has a default ACL

Missing folders above the store are made as `mkdir -p` makes them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from anchorlib.store.disk.full import NO_ROOM
from anchorlib.store.disk.node_writer import NodeWriter, delete, sync_directory
from anchorlib.store.format import hidden

__all__ = ["check_writable", "make_store", "unmade_store"]

_OWNER: Final = 0o700
_GROUP: Final = 0o770
_DEFAULT_ACL: Final = "system.posix_acl_default"


def make_store(store: Path, *, fsync: bool) -> None:
    """Create a store's directory, and missing folders above it; do nothing where it exists.

    fsync: whether to wait until the new folders are on disk. Raises OSError where the directory
    cannot be made, or `store` is no directory.
    """
    above = [path for path in (store, *store.parents) if not path.exists()]
    if above:
        store.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another rank was first
            _make(store)
    if not store.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(store))
    for path in above if fsync else ():
        sync_directory(path.parent)


def check_writable(store: Path) -> None:
    """Raise OSError where this process cannot write into a store; a full disk is no error here.

    To find out, a file is made in the store's folder for temporary files, and deleted again. The
    folder is made where it is missing.
    """
    tmp = hidden(store) / "tmp"
    try:
        tmp.mkdir(parents=True, exist_ok=True)
        file, path = tempfile.mkstemp(dir=tmp)
        os.close(file)
        Path(path).unlink()
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


@contextlib.contextmanager
def unmade_store(store: Path) -> Iterator[Path]:
    """Yield a temporary folder in which runs of `store` are prepared, as if it were a store.

    The folder is on the file system of `store`, so that a rename moves a finished run into `store`.
    No listing of `store` shows the folder. At the end of the `with` it is deleted, with everything
    that was not moved out.
    """
    made = NodeWriter(store).fresh()
    made.mkdir()
    try:
        yield made
    finally:
        delete(made)


def _make(store: Path) -> None:
    if _has_default_acl(store.parent):
        store.mkdir()
        return
    store.mkdir(_GROUP)
    made = store.stat().st_mode
    # The mode that is left of 0770 shows the umask, which cannot be read without changing it.
    if not (made & stat.S_IWGRP or _is_groups(store.parent)):
        with contextlib.suppress(OSError):  # a file system that has no modes
            store.chmod(stat.S_IMODE(made) & ~0o070 | _OWNER)


def _is_groups(folder: Path) -> bool:
    mode = folder.stat().st_mode
    return bool(mode & stat.S_ISGID or (mode & stat.S_IWGRP and not mode & stat.S_IWOTH))


def _has_default_acl(folder: Path) -> bool:
    if not hasattr(os, "getxattr"):  # no Linux
        return False
    try:
        return bool(os.getxattr(folder, _DEFAULT_ACL))
    except OSError:
        return False
