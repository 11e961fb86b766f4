"""sealed.json: the list of a sealed rank's objects and arrays, and the sign that it is complete.

    {"format": "anchor-sealed", "version": 1, "rank": 0, "uid": "9f…", "records": 120, "bytes": …,
     "arrays": {"records/int64": {…}, …},
     "objects": {"zarr.json": {"size": 512, "sha256": "…"}, "catalog/c/0": {…}, …},
     "check": "…"}

The keys in "arrays" and "objects" are paths below the rank's folder. The file is one line that ends
with its own checksum, as catalogue lines do. The file is written last, so a rank without
sealed.json was never sealed to its end.
"""

from __future__ import annotations

import builtins
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from anchorlib.errors import DamagedError, StoreError
from anchorlib.store.format import (
    Catalogue,
    attempt_line,
    check_depth,
    encode,
    group_json,
    is_safe_key,
    is_sound,
    mapping,
    rank_name,
    stamp,
    text,
    whole,
)
from anchorlib.store.locations import Location

__all__ = [
    "Sealed",
    "SealedObject",
    "is_unfinished",
    "rank_document",
    "read_sealed",
]

SEALED: Final = "sealed.json"
FORMAT: Final = "anchor-sealed"
VERSION: Final = 1
_MOST: Final = (1 << 63) - 1
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES: Final = 64 << 20  # of the document itself


@dataclass(frozen=True, slots=True)
class SealedObject:
    """One object (file) of a sealed rank, that is, of a rank compressed for an archive.

    key: its path below the run ("rank0/catalog/c/0"). size: in bytes. sha256: of its bytes, in hex.
    """

    key: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed rank (or part of one) as `sealed.json` describes it: a few large, final objects.

    uid: the id of the rank, from its catalogue. records: how many rows are committed. bytes: how
        many bytes their values have before compression. arrays: the entry of each array (see
        `SealedArray`), by its key in the rank. objects: all objects but `sealed.json` itself, in
        the order in which they were made.
    part: where several collectors share the rank, the number of the part that is described; 0 for
        the first part, and for a rank that one collector has as a whole.
    """

    rank: int
    uid: str
    records: int
    bytes: int
    arrays: Mapping[str, Mapping[str, Any]]
    objects: tuple[SealedObject, ...]
    part: int = 0

    @property
    def folder(self) -> str:
        """The path of the rank's folder below the run."""
        return rank_name(self.rank, self.part)

    @property
    def key(self) -> str:
        """The path of the rank's `sealed.json` below the run."""
        return f"{self.folder}/{SEALED}"

    @property
    def document(self) -> builtins.bytes:
        """The content of `sealed.json`, as bytes."""
        begin = len(self.folder) + 1
        return encode(
            {
                "format": FORMAT,
                "version": VERSION,
                "rank": self.rank,
                **({"part": self.part} if self.part else {}),
                "uid": self.uid,
                "records": self.records,
                "bytes": self.bytes,
                "arrays": self.arrays,
                "objects": {
                    one.key[begin:]: {"size": one.size, "sha256": one.sha256}
                    for one in self.objects
                },
            }
        )


def read_sealed(run: Location, rank: int, part: int = 0) -> Sealed | None:
    """Read the `sealed.json` of a rank or part of a rank of the run at `run`, in one request.

    Return None where the rank is not sealed, that is, not compressed for an archive. Raises
    DamagedError where the file is damaged, StoreError where a later version wrote it.
    """
    key = f"{rank_name(rank, part)}/{SEALED}"
    data = run.get(key, 0, _MOST_BYTES)
    if data is None:
        return None
    try:
        if not data.endswith(b"\n") or not is_sound(data[:-1]):
            raise ValueError("it does not fit its checksum")
        document = mapping(json.loads(data))
        check_depth(document)
        if document["format"] == FORMAT and whole(document["version"]) > VERSION:
            raise StoreError(
                f"{key} was written in version {document['version']} of sealed ranks, and this "
                f"anchorlib knows versions up to {VERSION}: read it with a newer anchorlib"
            )
        return _sealed(document, rank, part)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{key} is damaged: {error}") from error


def rank_document(catalogue: Catalogue) -> bytes:
    """Return the zarr.json of a sealed (archived) rank, which has an entry "sealed"."""
    attempts = [attempt_line(attempt) for attempt in catalogue.attempts]
    about = {"rank": catalogue.rank, "state": catalogue.state, "attempts": attempts}
    return group_json(stamp(**about, sealed=VERSION))


def is_unfinished(run: Location, rank: int, part: int = 0) -> bool:
    """Return whether the sealing of a rank into `run` was begun and not finished.

    Readers ignore such a rank. It is known by a zarr.json without a sealed.json: `zarr.json` is the
    first object that sealing writes, and has an entry "sealed", which a live rank's does not have.
    """
    folder = rank_name(rank, part)
    if run.get(f"{folder}/{SEALED}", 0, 1) is not None:
        return False
    try:
        document = json.loads(run.get(f"{folder}/zarr.json", 0, _MOST_BYTES) or b"")
        return "sealed" in document["attributes"]["anchor"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _sealed(document: Mapping[str, Any], rank: int, part: int) -> Sealed:
    name = rank_name(rank, part)
    if document["format"] != FORMAT or (
        whole(document["rank"]),
        whole(document.get("part", 0)),
    ) != (
        rank,
        part,
    ):
        raise ValueError(f"it is no {FORMAT} of {name}")
    return Sealed(
        rank,
        text(document["uid"]),
        whole(document["records"], most=_MOST),
        whole(document["bytes"], most=_MOST),
        {_safe(key): mapping(one) for key, one in mapping(document["arrays"]).items()},
        tuple(
            SealedObject(
                f"{name}/{_safe(key)}",
                whole(one["size"], most=_MOST),
                _digest(one["sha256"]),
            )
            for key, one in mapping(document["objects"]).items()
        ),
        part,
    )


def _safe(key: str) -> str:
    if not is_safe_key(text(key)):
        raise ValueError("one of its keys leads out of the run")
    return key


def _digest(value: Any) -> str:
    if not _SHA256.fullmatch(text(value)):
        raise ValueError("one of its digests is none of SHA-256")
    return str(value)
