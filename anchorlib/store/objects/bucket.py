"""A prefix of a bucket as a shelf, that is, a place where archives are written as objects."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal

from anchorlib.errors import CollectorError
from anchorlib.names import escape
from anchorlib.store.locations import Location
from anchorlib.store.objects.address import ObjectAddress
from anchorlib.store.objects.connection import faults_named
from anchorlib.store.objects.object_location import ObjectLocation
from anchorlib.store.objects.shelf import ObjectMetadata

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["ObjectShelf"]


class ObjectShelf:
    """A prefix of a bucket in which archives are stored; implements `Shelf`."""

    def __init__(self, client: ObjectStore, address: ObjectAddress) -> None:
        self._client = client
        self._address = address
        # What a write's condition names: Google Cloud Storage knows generations, others ETags.
        self._tag: Literal["version", "e_tag"] = "version" if address.scheme == "gs" else "e_tag"

    @property
    def place(self) -> str:
        """The address of the bucket and prefix, as `--store` takes it; it holds no secret."""
        return str(self._address)

    @property
    def location(self) -> Location:
        """The location of the objects, for reading."""
        return ObjectLocation(self._client, self._address)

    def held(self, prefix: str) -> dict[str, ObjectMetadata]:
        """Return {key: size and ETag} of all objects below the folder `prefix`, "" for all."""
        import obstore

        objects: dict[str, ObjectMetadata] = {}
        with faults_named(self._address, "cannot list", prefix):
            for page in obstore.list(self._client, prefix.rstrip("/") or None):
                objects |= {
                    one["path"]: ObjectMetadata(one["size"], one["e_tag"] or "") for one in page
                }
        return objects

    def fetch(self, key: str) -> tuple[bytes, str] | None:
        """Return (the bytes of an object, its tag for `swap`); None for no object.

        The tag is the ETag; on Google Cloud Storage it is the object's generation.
        """
        import obstore

        try:
            with faults_named(self._address, "cannot read", key):
                got = obstore.get(self._client, key)
                data = bytes(got.bytes())
        except FileNotFoundError:
            return None
        if len(data) != got.meta["size"]:
            raise CollectorError(f"cannot read {escape(f'{self._address}/{key}')}: it came in part")
        return data, got.meta[self._tag] or ""

    def put(self, key: str, data: bytes) -> None:
        """Store `data` as the object at `key`; an object with that key is replaced."""
        self._put(key, data, "overwrite")

    def create(self, key: str, data: bytes) -> bool:
        """Store `data` as the object at `key` unless there is an object already.

        Return False where that object has other bytes, otherwise True.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            self._put(key, data, "create")
        except (AlreadyExistsError, PreconditionError):
            # The object may be our own: where its answer was lost, the client has put it twice.
            stored = self.fetch(key)
            return stored is not None and stored[0] == data
        return True

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        """Store `data` as the object at `key` if the object still has the tag `tag`.

        `fetch` returned the tag. Return whether the object has the bytes of `data` now: True also
        where it already had them, False where it was changed otherwise or is gone.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            self._put(key, data, {self._tag: tag})
        except (AlreadyExistsError, PreconditionError, FileNotFoundError):
            stored = self.fetch(key)
            return stored is not None and stored[0] == data
        return True

    def remove(self, key: str) -> None:
        """Remove an object; do nothing where there is none."""
        import obstore

        with faults_named(self._address, "cannot remove", key):
            try:
                obstore.delete(self._client, key)
            except FileNotFoundError:
                return

    def is_same(self, key: str, held: ObjectMetadata, data: bytes) -> bool:
        """Return whether the object at `key` has exactly the bytes of `data`.

        held: the object's size and tag as `held` returned them. The object is read only where its
            size fits and its ETag is not the MD5 of `data`.
        """
        if held.size != len(data):
            return False
        if held.tag.strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest():
            return True
        stored = self.fetch(key)
        return stored is not None and stored[0] == data

    def _put(self, key: str, data: bytes, mode: Any) -> None:
        import obstore

        with faults_named(self._address, "cannot write", key):
            # In one request whatever its size: the ETag of a multipart upload is no MD5.
            obstore.put(self._client, key, data, mode=mode, use_multipart=False)
