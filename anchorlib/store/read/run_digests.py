"""The digests of all ranks of an archived run, which are kept together in one object.

    run1.zarr/digests-0123456789abcdef.json.zst
        for each rank the digests of its steps, see `anchorlib.store.seal.rank_digests`

The object's name has the first digits of the SHA-256 of the object's bytes. The index of the run
states this hash in full, so that an index and its digests always fit, also while archivers add
ranks: each archiver writes a new object before it replaces the index, and then removes the earlier
object.
An object that is missing, damaged or about ranks that the index does not know is ignored: then
ranks are opened to be compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from anchorlib.store.format import digests_key, encode, items, mapping, whole
from anchorlib.store.locations import Location
from anchorlib.store.read.run_figures import RunFigures
from anchorlib.store.seal import MOST_BYTES, RankDigests, deflated, read_digests, read_line

__all__ = ["digests_bytes", "digests_of_run", "object_name"]

FORMAT: Final = "anchor-digests"
VERSION: Final = 1
_MOST: Final = 1 << 18  # digests of all ranks together: 4 MiB, for they cannot be compressed
_FEWEST: Final = 16  # stretches of a rank, however many ranks there are


def object_name(data: bytes) -> str:
    """Return the SHA-256 in hex by which an index refers to the object with these bytes."""
    return hashlib.sha256(data).hexdigest()


def digests_bytes(ranks: Mapping[int, RankDigests]) -> bytes:
    """Return the bytes of the object that holds the digests of these ranks.

    ranks: the digests of each rank, by its number. Digests are hashes of the records of each range
    of steps; with many ranks each digest covers more steps, so that the object's size is limited.
    Raises ValueError where the object would still be larger than readers accept.
    """
    most = max(_MOST // max(len(ranks), 1), _FEWEST)
    of_ranks = [[rank, ranks[rank].bounded(most).document()] for rank in sorted(ranks)]
    line = encode({"format": FORMAT, "version": VERSION, "ranks": of_ranks})
    if len(line) > MOST_BYTES:
        raise ValueError(f"the digests of a run would be larger than {MOST_BYTES} bytes")
    return deflated(line)


def digests_of_run(run: Location, figures: RunFigures | None) -> dict[int, RankDigests] | None:
    """Read the digests of the ranks of an archived run, by rank, in one request.

    Digests are hashes of the records of each range of steps. figures: the run's index, None for a
    run without one. Return {} where there is no index, the index states no digests, or a later
    version wrote the digests; None where the object with the digests is missing or damaged, or has
    a rank that the index does not have. Raises CollectorError where the archive cannot be reached.
    """
    if figures is None or not figures.digests:
        return {}
    data = run.get(digests_key(figures.digests), 0, MOST_BYTES)
    if data is None or object_name(data) != figures.digests:
        return None
    try:
        digests = _read(data)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return digests if digests.keys() <= {*figures.ranks} else None


def _read(data: bytes) -> dict[int, RankDigests]:
    document = read_line(data)
    if document["format"] != FORMAT or whole(document["version"]) > VERSION:
        return {}  # digests of a later version may mean something else
    pairs = (items(one) for one in items(document["ranks"]))
    digests = [(whole(rank), read_digests(mapping(one))) for rank, one in pairs]
    if len(dict(digests)) < len(digests):
        raise ValueError("it has several digests of one rank")
    return dict(digests)
