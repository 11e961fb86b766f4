"""Who may do what: tokens and certificates, with their rights, and the runs these rights are for.

An access file lists them in TOML:

    [[token]]
    name = "vision"                                     shown in logs, and noted in runs it makes
    hash = "sha256:2c26b46b68ffc68f…"                   or a list, while a token is replaced
    rights = ["read", "write"]                          out of read, write, replace, delete
    runs = ["vision-*", "shared"]                       globs of the names of runs
    common_names = ["trainer7"]                         names in clients' certificates, in place of
    alternative_names = ["spiffe://here/trainer7"]      a token; they need --client-ca
    max_streams = 64                                    the token's limits, see `limits`; also
    max_rate = "50MB"                                   max_runs, max_run_size, max_run_inodes

A token is 256 random bits, which nobody finds by trying, however fast the hash is. A slow hash
protects passwords, which people choose; here it would only make every call slower.

`gate` asks for these rights at each call.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from hmac import compare_digest
from typing import Any, Final

from anchor_server.limits import LIMIT_KEYS, NO_LIMITS, Limits, read_limits
from anchorlib.errors import OptionError
from anchorlib.names import escape

__all__ = ["ALL_RIGHTS", "EVERY_RUN", "Access", "Grant", "Right", "hash_of", "parse_access"]

EVERY_RUN: Final = "*"

_HASH: Final = re.compile(r"sha256:([0-9a-f]{64})")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_GLOB: Final = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,128}")


class Right(StrEnum):
    """A right that a call may need.

    READ: read runs. DELETE: remove and rename runs.
    WRITE: record new runs, and continue or record anew the runs that the same token made.
    REPLACE: together with WRITE, also continue or record anew runs that other tokens made.
    """

    READ = "read"
    WRITE = "write"
    REPLACE = "replace"
    DELETE = "delete"


ALL_RIGHTS: Final = frozenset(Right)


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of one token or certificate: one [[token]] table of an access file.

    name: the name in the table; "" for the callers of a collector without an access file.
    rights: what may be done with the runs.
    runs: globs of the names of the runs that the rights are for.
    hashes: the SHA-256 of each token that has these rights.
    certificates: common names ("cn:NAME") and alternative names ("san:NAME") in certificates.
    limits: the limits of all streams and runs of this token together.
    """

    name: str
    rights: frozenset[Right]
    runs: tuple[str, ...]
    hashes: tuple[bytes, ...] = ()
    certificates: frozenset[str] = frozenset()
    limits: Limits = NO_LIMITS

    def may(self, right: Right, run: str | None) -> bool:
        """Returns whether this grant has the right `right` to the run `run`.

        run: None stands for files that belong to no run; those need the right to all runs ("*").
        """
        if right not in self.rights:
            return False
        if run is None:
            return EVERY_RUN in self.runs
        return any(fnmatchcase(run, glob) for glob in self.runs)


@dataclass(frozen=True, slots=True)
class Access:
    """The grants of a collector: all tokens and certificates with their rights.

    anyone: the rights of calls without token and known certificate; None refuses such calls.
    """

    grants: tuple[Grant, ...] = ()
    anyone: Grant | None = None

    @classmethod
    def of_token(cls, token: str | None) -> Access:
        """Returns an Access that gives all rights to `token`; None gives them to all callers."""
        hashes = () if token is None else (hash_of(token.encode()),)
        grant = Grant("", ALL_RIGHTS, (EVERY_RUN,), hashes)
        return cls(anyone=grant) if token is None else cls((grant,))

    def of_shown(self, token: bytes | None, certificate: Collection[str]) -> Grant | None:
        """Returns the grant (rights) of a caller, by its token or else its certificate.

        Returns None where the caller is to be refused. Where there are grants, a wrong token is
        refused even with a known certificate.

        token: the token that the call shows; None where the call shows none.
        certificate: the names in the client's certificate ("cn:NAME", "san:NAME"); may be empty.
        """
        if token is not None and self.grants:
            return self._of_hash(hash_of(token))
        named = (one for one in self.grants if not one.certificates.isdisjoint(certificate))
        return next(named, self.anyone)

    def _of_hash(self, shown: bytes) -> Grant | None:
        # All hashes are compared, each to its end: the time that this takes must not tell an
        # attacker how much of a hash he has guessed.
        matching = None
        for grant in self.grants:
            for known in grant.hashes:
                if compare_digest(shown, known):
                    matching = grant
        return matching


def hash_of(token: bytes) -> bytes:
    """Returns the SHA-256 of a token; access files and collectors keep it in place of the token."""
    return hashlib.sha256(token).digest()


def parse_access(text: str, file: str) -> Access:
    """Parses the text of an access file, and returns the grants in it.

    Raises OptionError, whose text names `file`, where the text is no valid access file.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError
        raise OptionError(f"{escape(file)} is no TOML: {escape(str(error)[:200])}") from None
    tables = document.pop("token", [])
    if document or not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        what = f"'{escape(next(iter(document)))}'" if document else "'token'"
        raise OptionError(f"{escape(file)} holds [[token]] tables alone, and {what} is none")
    grants = [_grant(table, number, file) for number, table in enumerate(tables, 1)]
    _refuse_double(grants, file)
    return Access(tuple(grants))


def _grant(table: Mapping[str, Any], number: int, file: str) -> Grant:
    where = f"{escape(file)}: token {escape(str(table.get('name', number)))!r}"
    if unknown := sorted(set(table) - _KEYS):
        known = ", ".join(sorted(_KEYS))
        raise OptionError(f"{where} has {escape(unknown[0])!r}, which is none of {known}")
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise OptionError(
            f"{where} needs a name of 1 to 64 letters, digits, '.', '_' and '-', with no dot and "
            "no dash first"
        )
    rights = _texts(table, "rights", where)
    if not rights or not set(rights) <= ALL_RIGHTS:
        raise OptionError(f"{where} needs rights out of {', '.join(Right)}")
    runs = _texts(table, "runs", where)
    if not runs or not all(map(_GLOB.fullmatch, runs)):
        raise OptionError(f"{where} needs runs: names of runs or globs of them, as 'vision-*'")
    certificates = [f"cn:{one}" for one in _texts(table, "common_names", where)]
    certificates += [f"san:{one}" for one in _texts(table, "alternative_names", where)]
    hashes = tuple(_hash(one, where) for one in _texts(table, "hash", where))
    if not (hashes or certificates):
        raise OptionError(f"{where} needs a hash, common_names or alternative_names: who it is")
    limits = read_limits(table, where)
    return Grant(name, frozenset(map(Right, rights)), runs, hashes, frozenset(certificates), limits)


_KEYS: Final = LIMIT_KEYS | {
    *("name", "hash", "rights", "runs", "common_names", "alternative_names"),
}


def _texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """Returns the strings that a TOML table has for a key, as a list or as a single string.

    Returns () where the key is missing. Raises OptionError, whose text begins with `where`, for any
    other value, and for an empty string.
    """
    value = table.get(key, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(one, str) and one for one in texts):
        raise OptionError(f"{where}: {key} is a list of texts")
    return tuple(texts)


def _hash(text: str, where: str) -> bytes:
    match = _HASH.fullmatch(text)
    if match is None:
        raise OptionError(f"{where}: a hash is sha256: and 64 hexadecimal digits; see anchor token")
    return bytes.fromhex(match[1])


def _refuse_double(grants: Iterable[Grant], file: str) -> None:
    """Raises OptionError where two tables of an access file share a name, hash or certificate.

    It would be ambiguous which of the two tables counts.
    """
    seen: set[str | bytes] = set()
    for grant in grants:
        shown: list[str | bytes] = [grant.name, *grant.hashes, *grant.certificates]
        for one in shown:
            if one in seen:
                raise OptionError(
                    f"{escape(file)}: token {grant.name!r} has the name, a hash or a certificate "
                    "of one before it"
                )
            seen.add(one)
