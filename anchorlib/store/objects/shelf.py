"""The interface that archiving needs of a place for objects, which is called a shelf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from anchorlib.store.locations import Location

__all__ = ["Held", "Shelf"]


@dataclass(frozen=True, slots=True)
class Held:
    """An object in an archive, as a listing shows it.

    tag: a text of the store that changes whenever the object does (an ETag).
    """

    size: int
    tag: str


class Shelf(Protocol):
    """A place where archives are stored as objects by key, such as a prefix of a bucket.

    What a method promises holds even where the store's answer to a request was lost.
    """

    @property
    def place(self) -> str:
        """The address of this place, as `--store` takes it; it holds no secret."""
        ...

    @property
    def location(self) -> Location:
        """The location of the objects, for reading."""
        ...

    def held(self, prefix: str) -> dict[str, Held]:
        """Returns size and tag of all objects below a folder's key, by their keys.

        Raises CollectorError or StoreError where the shelf cannot be listed.
        """
        ...

    def fetch(self, key: str) -> tuple[bytes, str] | None:
        """Returns the bytes of an object and its tag; None where there is no object."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Stores an object; an object with that key is replaced."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Stores an object unless there is one.

        Returns False where there is an object with other bytes.
        """
        ...

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        """Replaces the object if it still has this tag; returns False where it has another.

        Returns True where the object already has these bytes.
        """
        ...

    def remove(self, key: str) -> None:
        """Removes an object; does nothing where there is none."""
        ...

    def is_same(self, key: str, held: Held, data: bytes) -> bool:
        """Whether the object at `key` has exactly these bytes.

        held: the object as a listing showed it. Where its tag cannot tell, the object is read.
        """
        ...
