"""The alignment of two runs of which some tensors are selected, by the names that A has for them.

A tensor that has another name in B is found only by looking at all names. So all tensors of both
runs are aligned first, unless B has every selected tensor under A's name. The result has A's
selected tensors, their partners in B, and those tensors of B that the selectors name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from anchorlib.diagnosis.pairing.alignment import Alignment
from anchorlib.diagnosis.pairing.join import align
from anchorlib.diagnosis.pairing.tables import NO_REPRESENTATIVES, Representatives, Table, table_of
from anchorlib.diagnosis.pairing.unread_ranks import stands
from anchorlib.errors import UnknownTensorError
from anchorlib.reading import Run

__all__ = ["aligned_runs"]

Pairs = set[tuple[str, str]]


def aligned_runs(
    a: Run,
    b: Run,
    selectors: Sequence[str],
    names: Mapping[str, str],
    standing: Representatives = NO_REPRESENTATIVES,
) -> Alignment:
    """Return the alignment of the selected tensors of A and B, and of their partners.

    selectors: name tensors of A, or of B.
    names: the user's map, A's name -> B's.
    standing: ranks that need not be read -> the equal ranks that are read in their place.
    Raises UnknownTensorError for a selector that names nothing in A; and for a selector that names
    nothing in B, if B has no partner of any selected tensor of A either.
    """
    if standing and (short := _shortened(a, b, selectors, names, standing)) is not None:
        return short
    selected_a = table_of(a, selectors)
    missing: UnknownTensorError | None = None
    own: Pairs = set()
    try:
        selected_b = table_of(b, selectors)
        own = _pairs(selected_b)
        if _pairs(selected_a) <= own:
            return align(selected_a, selected_b, names=names)
    except UnknownTensorError as error:
        missing = error
    whole = align(table_of(a), table_of(b), names=names)
    if _pairs(selected_a) == _pairs(whole.a) and own == _pairs(whole.b):
        return whole
    wanted = _partners(whole, _pairs(selected_a))
    if missing is not None and not wanted:
        raise missing
    alignment = align(selected_a, table_of(b, chosen=wanted | own), names=_map(whole, selected_a))
    # The renamings were given as a map; how they were matched stands in the alignment of all.
    how = {(each.a, each.b): each.how for each in whole.renamed}
    renamed = (replace(each, how=how.get((each.a, each.b), each.how)) for each in alignment.renamed)
    return replace(alignment, renamed=tuple(renamed))


def _shortened(
    a: Run, b: Run, selectors: Sequence[str], names: Mapping[str, str], standing: Representatives
) -> Alignment | None:
    """Return the alignment made without reading ranks that equal others; None if all must be read.

    standing: ranks that are not read -> the ranks that are read in their place.
    """
    try:
        table_a, table_b = (table_of(run, selectors, standing=standing) for run in (a, b))
    except UnknownTensorError:
        return None
    if not _pairs(table_a) <= _pairs(table_b):
        return None
    alignment = align(table_a, table_b, names=names)
    return alignment if stands(alignment, standing, names) else None


def _pairs(table: Table) -> Pairs:
    return {(tensor.name, tensor.kind) for tensor in table.tensors}


def _map(whole: Alignment, table: Table) -> dict[str, str]:
    """Return A's name -> B's for those tensors of a table of A that B names differently.

    whole: the alignment of all tensors of both runs.
    """
    names = {tensor.name for tensor in table.tensors}
    return {each.a: each.b for each in whole.renamed if each.a in names}


def _partners(whole: Alignment, wanted: Pairs) -> Pairs:
    """Return the (name, kind) pairs of B that are partners of the pairs `wanted` of A.

    whole: the alignment of all tensors of both runs.
    """
    to_b = {each.a: each.b for each in whole.renamed}
    taken = set(to_b.values())
    there = _pairs(whole.b)
    partners = set()
    for name, kind in wanted:
        other = to_b.get(name, name)
        if (other, kind) in there and (name in to_b or name not in taken):
            partners.add((other, kind))
    return partners
