"""Makes new tokens (`anchor token`); an access file keeps only a token's hash, not the token."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from anchor_server.tokens import Right, hash_of, parse_access
from anchorlib.errors import OptionError
from anchorlib.names import escape
from anchorlib.wire import check_private

__all__ = ["issue_token"]

_TOKEN_BYTES: Final = 32
_HEAD: Final = "# Who may call `anchor serve --access` with this file; `anchor token` adds to it.\n"


def issue_token(file: Path, name: str, rights: Sequence[str], runs: Sequence[str]) -> str:
    """Makes a token, adds its hash and rights to the access file, and returns the token.

    A missing file is made. All other lines of the file stay as they are, comments too. Raises
    OptionError for a name that is taken or invalid, for unknown rights, for invalid globs, and for
    a file that cannot be read or written, that others than its owner can read, or that is invalid.

    name: the token's name. runs: globs of the names of the runs that the rights are for.
    """
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    table = _table(name, hash_of(token.encode()), rights, runs)
    parse_access(table, str(file))
    target = Path(os.path.realpath(file))
    try:
        with _locked(target) as descriptor:
            _add(target, descriptor, table, name)
    except OSError as error:
        raise OptionError(f"cannot write {escape(str(file))}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OptionError(f"{escape(str(file))} is no access file: it is no UTF-8") from None
    return token


def _table(name: str, digest: bytes, rights: Sequence[str], runs: Sequence[str]) -> str:
    """Returns the [[token]] table of a token as TOML text.

    Strings and lists are written as JSON, which is valid TOML too. Raises OptionError for an
    unknown right.

    digest: the SHA-256 of the token. runs: globs of the names of the runs that the rights are for.
    """
    if unknown := [one for one in rights if one not in tuple(Right)]:
        raise OptionError(
            f"'{escape(unknown[0][:80])}' is no right: choose out of {', '.join(Right)}"
        )
    entries = {
        "name": name,
        "hash": f"sha256:{digest.hex()}",
        "rights": [str(one) for one in Right if one in rights],
        "runs": list(runs),
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in entries.items()]
    return "\n".join(["[[token]]", *lines, ""])


def _add(target: Path, descriptor: int, table: str, name: str) -> None:
    check_private(target)
    with os.fdopen(os.dup(descriptor), encoding="utf-8") as opened:
        old = opened.read()
    if any(grant.name == name for grant in parse_access(old, str(target)).grants):
        raise OptionError(
            f"{escape(str(target))} has a token {name!r} already: choose another name, or remove "
            "its table first"
        )
    above = old or _HEAD
    text = "\n".join([above.removesuffix("\n"), "", table])
    parse_access(text, str(target))
    _replace(target, text, os.fstat(descriptor))


def _replace(target: Path, text: str, old: os.stat_result) -> None:
    """Replaces the access file atomically by a file that holds `text`.

    The new file gets the mode and owner of the old one.

    old: the status of the old file.
    """
    new = target.with_name(f".{target.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, old.st_uid, old.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        new.replace(target)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise


@contextmanager
def _locked(target: Path) -> Iterator[int]:
    """A context that holds the lock of the access file; a missing file is made.

    Waits until no other process holds the lock. Yields the file's descriptor, open for reading.
    """
    while True:
        descriptor = os.open(target, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Another process may have replaced the file while this one waited for the lock: then
            # the lock is on the old file, and the new one is opened.
            if os.path.samestat(os.fstat(descriptor), target.stat()):
                yield descriptor
                return
        finally:
            os.close(descriptor)
