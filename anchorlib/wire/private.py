"""Files that hold a secret: a token, the key of a certificate."""

from __future__ import annotations

import os
from pathlib import Path

from anchorlib.errors import OptionError
from anchorlib.names import escape

__all__ = ["check_private"]


def check_private(file: Path) -> None:
    """Raises OptionError where others than its owner can read `file`, OSError without it.

    A file of another owner, as root's that is mounted for a service, may be lent to a group: who
    runs the service could not read it otherwise.
    """
    found = file.stat()
    own = found.st_uid == os.geteuid()
    if found.st_mode & (0o077 if own else 0o027):
        shown = escape(str(file))
        raise OptionError(f"{shown} can be read by others than its owner: chmod 600 {shown}")
