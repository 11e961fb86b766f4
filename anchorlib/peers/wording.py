"""Writes outliers, which are ranks that differ from the other ranks, as lines of text for people.

Names of tensors and phases in the lines are escaped.
"""

from __future__ import annotations

from collections.abc import Sequence

from anchorlib.amounts import figure
from anchorlib.names import escape, join
from anchorlib.peers.outlier import Outlier

__all__ = ["outlier_text", "ranks_text"]

_ONE = {
    "digest": "its bits are not those that {peers} agree on",
    "parting": "it agrees no more with those it agreed with",
    "nan": "it has NaN or infinities where {peers} have none",
    "norm": "its size is {ratio} times that of {peers}",
}
_SEVERAL = {
    "digest": "their bits are not those that {peers} agree on",
    "parting": "they agreed before and differ from here on; no majority says which are right",
    "nan": "they have NaN or infinities where {peers} have none",
    "norm": "their sizes are up to {ratio} times those of {peers}",
}


def outlier_text(one: Outlier) -> str:
    """Return a line about the outlier `one`: its ranks, the first record that differs, and how."""
    meaning = (_SEVERAL if len(one.ranks) > 1 else _ONE)[one.evidence]
    peers = "1 other" if len(one.peers) == 1 else f"{len(one.peers):,} others"
    places = (("pass", one.pass_index), ("call", one.call))
    where = "".join(f", {word} {number}" for word, number in places if number)
    phase = "" if one.phase == "train" else f", phase {escape(one.phase)}"
    records = f"{one.records:,} record{'s' * (one.records != 1)}"
    tensors = f" of {one.tensors:,} tensors" if one.tensors > 1 else ""
    return (
        f"{ranks_text(one.ranks)} first at step {one.step}{where}{phase} in "
        f"{escape(join(one.name, one.kind))}: "
        f"{meaning.format(peers=peers, ratio=figure(one.ratio or 0))}; {records}{tensors}"
    )


def ranks_text(ranks: Sequence[int]) -> str:
    """Return a text that names `ranks` by ranges: "rank 4", "ranks 0-1022,1024".

    ranks: numbers of ranks, which have to be ascending.
    """
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    spans = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
    return f"rank{'s' * (len(ranks) > 1)} {spans}"
