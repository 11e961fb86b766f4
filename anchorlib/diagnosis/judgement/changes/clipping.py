"""To which norm each run clips its gradients, computed from the norms of all gradients.

Clipping multiplies all gradients by one factor, so that the norm of all gradients together becomes
the limit itself.
"""

from __future__ import annotations

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.pairing import Alignment, Table, is_taken

__all__ = ["clipped_otherwise"]

FEW = 3  # gradients: fewer are multiples of one another by chance
CLEAR = 1e-4  # relative difference from which two norms differ
NEAR = 2e-5
"""The relative difference up to which a norm is a limit, besides that of dividing by norm + ADDED:
a norm that no limit made is rarely as near to a number of two digits."""
ADDED = 1e-6
"""What torch's `clip_grad_norm_` adds to the norm by which it divides."""


def clipped_otherwise(frontier: Frontier, row: int) -> list[str]:
    """Say to which norm each run clips the gradients of the row's step; [] if alike or unclear.

    Two cases are clear. In one, both runs have a single backward in the step, whose gradients have
    equal norms before clipping. In the other, all gradients that B's optimizers read are A's times
    one factor (`_by_what_was_read`).
    row: a row of A, whose step and rank count. [] where passes or ranks were merged.
    """
    alignment = frontier.alignment
    if alignment.merged:
        return []
    a, rank = alignment.a, alignment.a.tensors[alignment.a.tensor[row]].rank
    sides = ((a, int(a.step[row])), (alignment.b, int(a.step[row]) + alignment.step_offset))
    first, second = (_norms(table, step, rank) for table, step in sides)
    if first is None or second is None:
        return _by_what_was_read(alignment, row)
    (before, after_a), (other, after_b) = first, second
    if abs(before - other) > CLEAR * before or abs(after_a - after_b) <= CLEAR * max(
        after_a, after_b
    ):
        return []
    limits = [
        "" if abs(after - before) <= CLEAR * before else _limit(after, before)
        for after in (after_a, after_b)
    ]
    if None in limits or max(after_a, after_b) > before * (1 + CLEAR):
        return []
    words = f"clips the gradients' norm of {before:.4g}"
    if limits[0] and limits[1]:
        return [f"A {words} {limits[0]}, B {limits[1]}"]
    return [f"A alone {words} {limits[0]}" if limits[0] else f"B alone {words} {limits[1]}"]


def _by_what_was_read(alignment: Alignment, row: int) -> list[str]:
    """Say to which norm each run clips, from the gradients that its optimizers read; [] if unclear.

    This serves `clipped_otherwise` where the gradients before clipping are not known. All gradients
    of B must be A's times one factor. A run then clips if the norm of all its gradients is a number
    of two digits, as programs state limits. If one run alone clips, its norm must be the smaller.
    row: a row of A, whose step and rank count.
    """
    a, rank = alignment.a, alignment.a.tensors[alignment.a.tensor[row]].rank
    taken = is_taken(a) & (a.rank == rank) & (a.step == a.step[row])
    pairs = np.flatnonzero(taken[alignment.a_row])
    tensors = a.tensor[alignment.a_row[pairs]]
    if len(pairs) < FEW or len(np.unique(tensors)) < len(tensors):
        return []
    norms = (
        a.figures["l2"][alignment.a_row[pairs]],
        alignment.b.figures["l2"][alignment.b_row[pairs]],
    )
    with np.errstate(all="ignore"):
        ratios = norms[1] / norms[0]
    if not (np.isfinite(ratios).all() and np.ptp(ratios) <= CLEAR * abs(ratios[0])):
        return []
    whole = [float(np.linalg.norm(of_run)) for of_run in norms]
    limits = [_limit(norm, max(whole)) for norm in whole]
    if limits[0] and limits[1]:
        return [f"A clips the gradients' norm {limits[0]}, B {limits[1]}"]
    clips = int(whole[1] < whole[0])  # 0: A, the run whose gradients are smaller
    if not limits[clips]:
        return []
    run, other = "AB"[clips], "BA"[clips]
    return [
        f"{run} clips the gradients' norm {limits[clips]}, in {other} it is {whole[1 - clips]:.4g}"
    ]


def _limit(norm: float, before: float) -> str | None:
    """Return "to LIMIT" if a norm is a number of two digits, as programs state limits; else None.

    before: the norm before clipping, on which the tolerance depends.
    """
    limit = f"{norm:.2g}"
    near = NEAR + ADDED / before
    return f"to {float(limit):g}" if abs(float(limit) - norm) <= near * norm else None


def _norms(table: Table, step: int, rank: int) -> tuple[float, float] | None:
    """Return two norms of all gradients of a step on a rank, before and after clipping.

    They are the norm over all `pass_grad` records, as backward made them, and over the `grad`
    records of the same parameters, as the optimizer read them. None where a parameter has several
    gradients of either kind, or only one kind, and where a gradient carries a loss scale.
    """
    names: list[set[str]] = []
    norms = []
    here = (table.rank == rank) & (table.step == step)
    for kind in ("pass_grad", "grad"):
        known = table.where(lambda tensor: not names or tensor.name in names[0])
        rows = np.flatnonzero(here & known & table.of_kind(kind))
        names_of_kind = [table.tensors[number].name for number in table.tensor[rows].tolist()]
        if (
            not names_of_kind
            or len(set(names_of_kind)) < len(names_of_kind)
            or (table.scale[rows] != 1).any()
        ):
            return None
        names.append(set(names_of_kind))
        norms.append(float(np.linalg.norm(table.figures["l2"][rows])))
    if names[0] != names[1] or not (np.isfinite(norms).all() and all(norms)):
        return None
    return norms[0], norms[1]
