"""The stores of several collectors as one location: each part of a rank is read from its collector.

A part is what one collector holds of a rank. A run's folder is listed by asking all collectors. So
a listing is complete, or it is an error: a CollectorError that names the collector which does not
answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from anchorlib.errors import StoreError
from anchorlib.names import escape
from anchorlib.store.format import rank_of
from anchorlib.store.locations.location import CollectorLocation

__all__ = ["SeveralCollectors"]


class SeveralCollectors:
    """The stores of several collectors as one location; the collectors may share runs and ranks.

    Each part of a rank has to lie at one collector alone.
    """

    def __init__(self, collectors: Sequence[CollectorLocation]) -> None:
        self.collectors = collectors
        self._owners: dict[str, CollectorLocation] = {}

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return up to `length` bytes of the file at `key` from `start` on; None for no file.

        A file outside of ranks is taken from the first collector that has it. length: None reads to
        the end of the file. Raises CollectorError where a collector that is asked does not answer.
        """
        part = _part(key)
        if part is None:
            answers = (one.get(key, start, length) for one in self.collectors)
            return next((data for data in answers if data is not None), None)
        if part not in self._owners:
            self.list(part.partition("/")[0])
        owner = self._owners.get(part)
        return None if owner is None else owner.get(key, start, length)

    def list(self, prefix: str) -> list[str]:
        """Return the names in a folder ("" is the root), sorted; names of folders end in "/".

        [] where there is no such folder. Raises StoreError where two collectors have the same part
        of a rank, CollectorError where a collector does not answer.
        """
        part = _part(prefix)
        if part is not None:
            if part not in self._owners:
                self.list(part.partition("/")[0])
            owner = self._owners.get(part)
            return [] if owner is None else owner.list(prefix)
        owners: dict[str, CollectorLocation] = {}
        for one in self.collectors:
            for name in one.list(prefix):
                self._own(f"{prefix.strip('/')}/{name.rstrip('/')}", one, owners)
                owners.setdefault(name, one)
        return sorted(owners)

    def _own(
        self, key: str, collector: CollectorLocation, owners: dict[str, CollectorLocation]
    ) -> None:
        """Remember which collector has a part of a rank; raise StoreError where two have it.

        key: the path of a name that `collector` lists; a path that is no group of a rank is
            ignored. owners: {name: the first collector that lists it} of the names so far.
        """
        if _part(key) is None:
            return
        name = key.rpartition("/")[2]
        other = owners.get(name) or owners.get(f"{name}/")
        if other is not None:
            run = escape(key.partition("/")[0].removesuffix(".zarr"))
            raise StoreError(
                f"{name} of run {run} is at {other.client.address} and at "
                f"{collector.client.address}, which were not written as one list: read each of "
                "them by itself"
            )
        self._owners[key] = collector

    def __repr__(self) -> str:
        return f"SeveralCollectors({list(self.collectors)!r})"


def _part(key: str) -> str | None:
    """Return the group of a part of a rank, such as "run1.zarr/rank3", in which `key` lies.

    None where `key` lies in no such group.
    """
    top, *rest = key.strip("/").split("/")
    return f"{top}/{rest[0]}" if rest and rank_of(rest[0]) is not None else None
