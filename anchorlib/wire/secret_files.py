"""Checks who may read a file that holds a secret, such as a token or the key of a certificate."""

from __future__ import annotations

import os
from pathlib import Path

from anchorlib.errors import OptionError
from anchorlib.names import escape

__all__ = ["check_private"]


def check_private(file: Path) -> None:
    """Raise OptionError if others than its owner have rights to `file`, OSError if it is missing.

    A file of another owner may be readable by its group: a secret that belongs to root and is
    mounted for a service could not be read by the service's user otherwise.
    """
    status = file.stat()
    own = status.st_uid == os.geteuid()
    if status.st_mode & (0o077 if own else 0o027):
        shown = escape(str(file))
        raise OptionError(f"{shown} can be read by others than its owner: chmod 600 {shown}")
