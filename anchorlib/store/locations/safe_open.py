"""Opens files below a folder so that no name in it can lead out of it or make a reader wait.

A run may come from anywhere, and whoever made it chose every name in it. So each folder on the way
to a file is opened from the folder above, and no link is followed. Anything but a file or a folder
is refused: opening a pipe waits for a writer, and a device may never end.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from anchorlib.errors import StoreError
from anchorlib.names import escape

__all__ = ["names_beneath", "open_beneath"]

_ROOT: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER: Final = _ROOT | os.O_NOFOLLOW
# Without O_NONBLOCK, opening a pipe waits until another process writes into it.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MISSING: Final = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
_KINDS: Final = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_beneath(root: str, key: str) -> int | None:
    """Open the file at `key` below the folder `root`; return its descriptor, None for no file.

    None also where a folder is at `key`. `root` itself may be a link. Raises StoreError for a link,
    pipe, socket or device at `key` or on the way to it, OSError where the system cannot open the
    file for another reason. The caller has to close the descriptor.
    """
    folder, _, name = key.rpartition("/")
    above = _folder(root, folder)
    if above is None:
        return None
    try:
        file = os.open(name, _FILE, dir_fd=above)
    except OSError as error:
        _refuse(above, name, key)
        if error.errno in _MISSING:
            return None
        raise
    finally:
        os.close(above)
    kind = stat.S_IFMT(os.fstat(file).st_mode)
    if kind == stat.S_IFREG:
        return file
    os.close(file)
    if kind == stat.S_IFDIR:
        return None
    raise _strange(key, kind)


def names_beneath(root: str, folder: str) -> list[str]:
    """Return the names in a folder below `root` ("" is `root`), sorted; folders end in "/".

    Names that begin with a dot are left out. A link to a folder is listed as a folder; opening it
    raises an error that says what it is. [] where there is no such folder. Raises StoreError for a
    link, pipe, socket or device on the way, OSError where the system cannot open the folder for
    another reason.
    """
    descriptor = _folder(root, folder)
    if descriptor is None:
        return []
    try:
        with os.scandir(descriptor) as entries:
            return sorted(
                f"{entry.name}/" if _is_folder(entry) else entry.name
                for entry in entries
                if not entry.name.startswith(".")
            )
    finally:
        os.close(descriptor)


def _folder(root: str, key: str) -> int | None:
    """Open the folder at `key` below `root` ("" is `root`); return its descriptor or None.

    None means that there is no such folder. Raises what `open_beneath` raises.
    """
    try:
        descriptor = os.open(root, _ROOT)
    except OSError as error:
        if error.errno in _MISSING:
            return None
        raise
    done = ""
    for name in key.split("/") if key else ():
        done = f"{done}/{name}" if done else name
        above, descriptor = descriptor, -1
        try:
            descriptor = os.open(name, _FOLDER, dir_fd=above)
        except OSError as error:
            _refuse(above, name, done)
            if error.errno in _MISSING:
                return None
            raise
        finally:
            os.close(above)
    return descriptor


def _refuse(above: int, name: str, key: str) -> None:
    """Raise StoreError where `name` in the open folder `above` is a link, pipe, socket or device.

    Do nothing where it is anything else. The errno of the failed open is not used, because systems
    differ in it.
    """
    try:
        kind = stat.S_IFMT(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
    except OSError:
        return
    if kind in _KINDS:
        raise _strange(key, kind)


def _strange(key: str, kind: int) -> StoreError:
    what = _KINDS.get(kind, "no file")
    return StoreError(
        f"{escape(key)} is {what}, and only files and folders of its own belong into a run"
    )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False
