"""Checks who may read a file that holds a secret, such as a token or the key of a certificate."""

from __future__ import annotations

import os
from pathlib import Path

from anchorlib.errors import OptionError
from anchorlib.names import escape

__all__ = ["check_private"]


def check_private(file: Path) -> None:
    """Raise OptionError if the mode of `file` lets others use it, OSError if it is missing.

    A file that belongs to this process's user may give rights to its owner alone. A file of another
    user may also be readable, but not writable, by its group: otherwise a service could not read a
    secret that belongs to root and is mounted for the service.
    """
    status = file.stat()
    own = status.st_uid == os.geteuid()
    if status.st_mode & (0o077 if own else 0o027):
        shown = escape(str(file))
        raise OptionError(f"{shown} can be read by others than its owner: chmod 600 {shown}")
