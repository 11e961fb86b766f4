"""Two tables aligned: records paired by rank, phase, step, pass, call, kind, name and mode.

The order in which records arrived never decides anything. The modes All, Summary, EveryN and Final
record the tensor itself, so that their records are paired where coordinates agree; a Sum is paired
only with a Sum of an equal window. Records without a partner are part of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from anchorlib.diagnosis.pairing.alignment import Alignment
from anchorlib.diagnosis.pairing.identity import Identities, joined, same_bits, step_offset
from anchorlib.diagnosis.pairing.loss_scales import with_loss_scale
from anchorlib.diagnosis.pairing.orders import arranged
from anchorlib.diagnosis.pairing.renaming import (
    by_name,
    made_by,
    match_bits,
    match_figures,
    match_positions,
    named,
)
from anchorlib.diagnosis.pairing.splits import merged, met, redealt, splits
from anchorlib.diagnosis.pairing.tables import Table
from anchorlib.scope import EVAL

__all__ = ["align"]

NO_NAMES: Mapping[str, str] = MappingProxyType({})


def align(a: Table, b: Table, *, names: Mapping[str, str] = NO_NAMES) -> Alignment:
    """Return the alignment of two runs: the records of `a` in pairs with those of `b`.

    Where the runs split or order their work differently, passes and ranks are merged, and B's
    samples and loss scale are adapted to A's: then the alignment has other tables than `a` and `b`.

    names: A's name -> B's, where they are known to differ. Names that a run does not have are
        ignored; where several names of A are given one name of B, the last of them holds.
    """
    return with_loss_scale(arranged(_put_together(a, b, names)))


def _put_together(a: Table, b: Table, names: Mapping[str, str]) -> Alignment:
    """Return the alignment of two tables, with passes or ranks merged that are split otherwise.

    names: A's name -> B's, where they are known to differ.
    """
    alignment = _aligned(a, b, names)
    # A run that was left in eval mode trains in that phase: its passes are no evaluation's alone.
    without = () if alignment.eval_since == (None, None) else (EVAL,)
    for split in splits(a, b, without):
        to_a = {renaming.b: renaming.a for renaming in alignment.renamed}
        to_b = {renaming.a: renaming.b for renaming in alignment.renamed}
        offset = alignment.step_offset
        if split.side == "b":
            made = merged(b, a, split, to_a, -offset)
            sides = (a, made[0]) if made else None
        else:
            made = merged(a, b, split, to_b, offset)
            sides = (made[0], b) if made else None
        if made and sides:
            return replace(_aligned(*sides, names), merged=(made[1],))
    to_b = {renaming.a: renaming.b for renaming in alignment.renamed}
    if (meeting := met(a, b, to_b, alignment.step_offset, without)) is not None:
        return replace(_aligned(meeting.a, meeting.b, names), merged=meeting.merged)
    return _with_dealt_passes(alignment, names)


def _with_dealt_passes(alignment: Alignment, names: Mapping[str, str]) -> Alignment:
    """Return the alignment with those passes merged to which B deals a step's samples otherwise.

    The passes of a step become one. Phases with another number of passes are merged in a further
    round. names: A's name -> B's, where they are known to differ.
    """
    to_b = {renaming.a: renaming.b for renaming in alignment.renamed}
    pairs = alignment.a_row, alignment.b_row, alignment.equal
    meeting = redealt(alignment.a, alignment.b, pairs, to_b, alignment.step_offset)
    if meeting is None:
        return alignment
    merged_before = alignment.merged
    whole = replace(_aligned(meeting.a, meeting.b, names), merged=(*merged_before, *meeting.merged))
    return _with_dealt_passes(whole, names)


def _aligned(a: Table, b: Table, names: Mapping[str, str]) -> Alignment:
    naming = by_name(named(a), named(b), names, (made_by(a), made_by(b)))
    match_bits(naming, a, b, 0)
    match_positions(naming, a, b)
    identities = Identities(a, b, naming.to_b, 0)
    offset = step_offset(a, b, naming.to_b, identities)
    before = len(naming.to_b)
    if offset:
        match_bits(naming, a, b, offset)
    naming.match_equal()
    match_figures(naming, a, b, offset)
    if offset or len(naming.to_b) > before:
        identities = Identities(a, b, naming.to_b, offset)
    places_a, places_b = joined(identities.key_a, identities.key_b)
    a_row, b_row = identities.row_a[places_a], identities.row_b[places_b]
    return Alignment(
        a=a,
        b=b,
        a_row=a_row,
        b_row=b_row,
        equal=same_bits(a, b, a_row, b_row),
        only_a=np.setdiff1d(identities.row_a, a_row, assume_unique=True),
        only_b=np.setdiff1d(identities.row_b, b_row, assume_unique=True),
        renamed=tuple(naming.renamed),
        step_offset=offset,
        eval_since=identities.eval_since,
    )
