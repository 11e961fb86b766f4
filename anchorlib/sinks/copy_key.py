"""The key, kept in a file of this user, from which the secret of each copy of a run is made.

Whoever knows the secret of a copy can continue the copy after an interruption. The secret must not
follow from the run's contents alone, or everybody who can read the run could continue the copy.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
from pathlib import Path
from typing import Final

from anchorlib.claims import SECRET_BYTES
from anchorlib.errors import StoreError
from anchorlib.names import escape
from anchorlib.spool import spool_place

__all__ = ["copy_secret"]

_NAME: Final = ".copy.key"
_KEY_BYTES: Final = 32


def copy_secret(what: tuple[object, ...]) -> bytes:
    """Return the secret by which this user can continue the copy of one attempt at a rank.

    The secret is a hash of `what` with the user's key. A user without a key gets one, which is
    written into a file. Raises StoreError if the key cannot be read, or a new one not be written.

    what: values that identify the attempt (one recording of the rank) and the copy.
    """
    identity = repr(what).encode()
    return hmac.new(_key(), identity, hashlib.sha256).digest()[:SECRET_BYTES]


def _key() -> bytes:
    path = spool_place() / _NAME
    try:
        if not path.exists():
            _make(path)
        return path.read_bytes()
    except OSError as error:
        raise StoreError(
            f"no key for copies can be kept at {escape(str(path))} ({error.strerror}); set "
            "ANCHOR_SPOOL to a directory of this user"
        ) from error


def _make(path: Path) -> None:
    """Make a file with a new key at `path`, atomically; a file that another process made is kept.

    Raises OSError if the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = path.with_name(f"{_NAME}.{os.getpid()}.{os.urandom(4).hex()}")
    file = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(file, os.urandom(_KEY_BYTES))
    finally:
        os.close(file)
    with contextlib.suppress(FileExistsError):
        path.hardlink_to(made)
    made.unlink()
