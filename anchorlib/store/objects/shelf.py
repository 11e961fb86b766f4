"""What archiving asks of a place where objects are put."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from anchorlib.store.locations import Location

__all__ = ["Held", "Shelf"]


@dataclass(frozen=True, slots=True)
class Held:
    """An object that is there.

    tag: changes whenever the object does, as the store has it (an ETag).
    """

    size: int
    tag: str


class Shelf(Protocol):
    """Objects by key; what each verb promises holds also where its answer was lost on the way."""

    @property
    def place(self) -> str:
        """Where it is, as a `--store` takes it; holds nothing secret."""
        ...

    @property
    def location(self) -> Location:
        """The same objects, to be read."""
        ...

    def held(self, prefix: str) -> dict[str, Held]:
        """All objects below a folder's key, by their keys. Raises CollectorError, StoreError."""
        ...

    def fetch(self, key: str) -> tuple[bytes, str] | None:
        """An object and its tag, None where there is none."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Puts an object, in the place of one that is there."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Puts an object where there is none; False where there is another one."""
        ...

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        """Puts an object in the place of the one with this tag; False where it is another now."""
        ...

    def remove(self, key: str) -> None:
        """Removes an object; one that is not there is none the less gone."""
        ...

    def is_same(self, key: str, held: Held, data: bytes) -> bool:
        """Whether the object that is there is just these bytes; read again where it must be."""
        ...
