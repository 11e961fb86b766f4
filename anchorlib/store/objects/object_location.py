"""An object store as a location, that is, read by key like a directory or a collector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anchorlib.errors import CollectorError, StoreError
from anchorlib.names import escape, quoted
from anchorlib.store.format import is_safe_key
from anchorlib.store.objects.address import ObjectAddress
from anchorlib.store.objects.connection import faults_named, is_gone

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["ObjectLocation"]


class ObjectLocation:
    """The objects under a prefix of a bucket as a `Location`.

    Each `get` is one request; a `list` is one request for every thousand names. An answer that is
    shorter than it announced raises CollectorError: no part of an object is taken for the whole.
    """

    def __init__(self, client: ObjectStore, address: ObjectAddress) -> None:
        self.address = address
        self._client = client

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return up to `length` bytes of the object at `key` from `start` on; None for no object.

        The result is b"" where the object has no bytes from `start` on.
        length: None reads to the end of the object. Raises CollectorError for a store that cannot
        be reached, StoreError for a key that leads out of the prefix.
        """
        self._check(key)
        if length is not None and length <= 0:
            length = 1
            return b"" if self._get(key, _range(start, length)) is not None else None
        return self._get(key, _range(start, length))

    def _get(self, key: str, options: dict[str, Any]) -> bytes | None:
        import obstore
        from obstore.exceptions import BaseError

        try:
            with faults_named(self.address, "cannot read", key):
                try:
                    answer = obstore.get(self._client, key, options=options)  # type: ignore[arg-type]
                    data = bytes(answer.bytes())
                except BaseError as error:
                    if is_gone(error):
                        return b""
                    raise
        except FileNotFoundError:
            return None
        first, end = answer.range
        if len(data) != end - first:
            raise CollectorError(
                f"cannot read {escape(f'{self.address}/{key}')}: {len(data)} of {end - first} "
                "bytes came; try again"
            )
        return data

    def list(self, prefix: str) -> list[str]:
        """Return the names in a folder ("" is the root), sorted; names of folders end in "/".

        [] where there is no such folder. Raises CollectorError for a store that cannot be reached,
        StoreError for a folder that leads out of the prefix.
        """
        import obstore

        key = prefix.rstrip("/")
        if key:
            self._check(key)
        with faults_named(self.address, "cannot list", key):
            listing = obstore.list_with_delimiter(self._client, key or None)
        folders = [f"{_last(path)}/" for path in listing["common_prefixes"]]
        files = [_last(one["path"]) for one in listing["objects"]]
        # As in a directory, names that begin with a dot are no part of the location.
        return sorted(name for name in {*folders, *files} if is_safe_key(name.rstrip("/")))

    def _check(self, key: str) -> None:
        if not is_safe_key(key):
            raise StoreError(f"{quoted(key)} is no key of a store: it would lead out of it")

    def __repr__(self) -> str:
        return f"ObjectLocation({str(self.address)!r})"


def _range(start: int, length: int | None) -> dict[str, Any]:
    if length is not None:
        return {"range": (start, start + length)}
    return {"range": {"offset": start}} if start else {}


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
