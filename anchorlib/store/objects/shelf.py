"""The interface that archiving needs of a place for objects: a shelf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from anchorlib.store.locations import Location

__all__ = ["Held", "Shelf"]


@dataclass(frozen=True, slots=True)
class Held:
    """An object on a shelf, as its listing shows it.

    tag: a text of the store that changes whenever the object does (an ETag).
    """

    size: int
    tag: str


class Shelf(Protocol):
    """Objects by key. A promise of a method holds even where the store's answer was lost."""

    @property
    def place(self) -> str:
        """The address of the shelf, as `--store` takes it; it holds no secret."""
        ...

    @property
    def location(self) -> Location:
        """The location of the shelf's objects, for reading."""
        ...

    def held(self, prefix: str) -> dict[str, Held]:
        """All objects below a folder's key, by their keys. Raises CollectorError, StoreError."""
        ...

    def fetch(self, key: str) -> tuple[bytes, str] | None:
        """The bytes of an object and its tag; None where there is no object."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Puts an object, and replaces one of that key."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Puts an object where there is none; returns False where there is one of other bytes."""
        ...

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        """Replaces the object that has this tag; returns False where another one is there now.

        Returns True where the object already has these bytes.
        """
        ...

    def remove(self, key: str) -> None:
        """Removes an object; does nothing where there is none."""
        ...

    def is_same(self, key: str, held: Held, data: bytes) -> bool:
        """Whether the object has exactly these bytes; it is read where its tag cannot tell."""
        ...
