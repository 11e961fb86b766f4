"""What does not fit its checksums in a run, and a way to make it so."""

from __future__ import annotations

from pathlib import Path

from anchorlib.errors import StoreError
from anchorlib.store import LocalLocation, RankAudit, RankReader


def faults(store: Path) -> list[object]:
    """All that does not fit: rows by number, the rest in words."""
    location = LocalLocation(store / "run1.zarr")
    try:
        audit = RankAudit(location, RankReader(location, 0))
        found: list[object] = list(audit.faults())
        for start, stop in audit.parts():
            part = audit.rows(start, stop)
            found += [*part.bad, *part.labels]
    except StoreError as error:
        return [str(error)]
    return found


def flip(path: Path, place: int) -> None:
    """Turn bit `place` of a file over."""
    data = bytearray(path.read_bytes())
    data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)
