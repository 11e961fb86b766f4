"""Whether reading all ranks would change an alignment for which equal ranks were left unread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing.alignment import Alignment
from anchorlib.diagnosis.pairing.renaming import by_name, made_by, named
from anchorlib.diagnosis.pairing.splits import meetings, splits
from anchorlib.diagnosis.pairing.tables import Representatives, Table

__all__ = ["stands"]

Array = np.ndarray[Any, Any]


def stands(alignment: Alignment, standing: Representatives, names: Mapping[str, str]) -> bool:
    """Return whether the alignment surely equals the one that reading all ranks would give.

    The two are equal where no name, step, pass or rank was paired by the bits of values, and the
    ranks in question are wholly paired and equal: then every pair follows from coordinates alone,
    which a rank that was not read shares with the rank that was read in its place.
    standing: ranks that were not read -> the ranks that were read in their place.
    names: the user's map, A's name -> B's.
    """
    a, b = alignment.a, alignment.b
    if alignment.merged or alignment.step_offset or alignment.reordered is not None:
        return False
    if splits(a, b) or meetings(a, b):
        return False
    # Most pairs are equal, so that no other offset of the steps was tried.
    if 2 * len(alignment.differing) >= len(alignment):
        return False
    naming = by_name(named(a), named(b), names, (made_by(a), made_by(b)))
    if naming.left_a or naming.left_b:
        return False
    ranks = [*{*standing, *standing.values()}]
    of = _of_ranks(a, ranks), _of_ranks(b, ranks)
    return bool(
        _in_one_mode(a)
        and _in_one_mode(b)
        and alignment.equal[of[0][alignment.a_row]].all()
        and not of[0][alignment.only_a].any()
        and not of[1][alignment.only_b].any()
    )


def _of_ranks(table: Table, ranks: list[int]) -> Array:
    """Return a boolean mask: whether each row of a table is of one of these ranks."""
    of_ranks: Array = np.isin(table.rank, ranks)
    return of_ranks


def _in_one_mode(table: Table) -> bool:
    """Return whether each tensor of the table was recorded in one mode only.

    Where two modes recorded one observation, the record whose values are stored is paired, so that
    coordinates alone do not say which records are pairs.
    """
    return len({(tensor.name, tensor.kind, tensor.rank) for tensor in table.tensors}) == len(
        table.tensors
    )
