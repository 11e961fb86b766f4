"""Names matched by their records: by equal bits, and at last, as a guess, by like norms.

Only records of A's first step count, and those of the corresponding step of B (where B lacks that
step, of its next one). A place is a record's rank, kind, phase, pass, call, dtype and shape: only
records at equal places are compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

import numpy as np

from anchorlib.diagnosis.pairing.renaming.names import Naming
from anchorlib.diagnosis.pairing.tables import Table

__all__ = ["match_bits", "match_figures"]

STEPPED, MANY = ("updated", "delta"), 64
"""Records of these kinds, and of `opt.*`, identify a name only where they have at least MANY
elements. The first step of Adam has one size everywhere, so that only signs differ, and two small
tensors may well have equal signs."""
LIKE = 0.02  # of the larger norm: by how much the norms of like records may differ


class _Record(NamedTuple):
    """One record of an unmatched name at the first step of the comparison.

    place: the rank, kind, phase, pass, call, dtype and shape.
    digest: the two halves of the digest. l2: the norm.
    telling: whether the values can distinguish the tensor from other tensors. A constant tensor
        cannot, nor a single 0, 1 or -1. A record of an optimizer's step (updates and `opt.*`) can
        only if it has MANY elements or more.
    """

    name: str
    place: Hashable
    digest: tuple[int, int]
    telling: bool
    l2: float


def match_bits(naming: Naming, a: Table, b: Table, offset: int) -> None:
    """Match unmatched names that have a record with equal bits at an equal place of the first step.

    A place is a record's rank, kind, phase, pass, call, dtype and shape; later steps do not count.

    Bits identify a name only if no other unmatched name has them at that place, and if they are
    neither one repeated number nor a single 0, 1 or -1. The matches are added to `naming`.
    offset: what to add to A's steps to get B's.
    """
    by_bits = [_by_bits(records) for records in _first_records(naming, a, b, offset)]
    pairs = [
        (next(iter(names)), next(iter(by_bits[1][bits])))
        for bits, names in by_bits[0].items()
        if len(names) == 1 and len(by_bits[1].get(bits, ())) == 1
    ]
    naming.match_all(pairs, "digest")


def match_figures(naming: Naming, a: Table, b: Table, offset: int) -> None:
    """Guess matches of unmatched names of equal kinds and shapes whose norms differ by at most 2 %.

    The matches are added to `naming`. Only records of the first step count. Their norms must be
    alike at all places (rank, kind, phase, pass, call, dtype, shape) that both names have. Two
    names are matched only where neither has norms like those of a third name.
    offset: what to add to A's steps to get B's.
    """
    sides = []
    for records in _first_records(naming, a, b, offset):
        norms: dict[str, dict[Hashable, float]] = {}
        for record in records:
            if record.telling:
                norms.setdefault(record.name, {})[record.place] = record.l2
        sides.append(norms)
    alike: dict[Hashable, list[str]] = {}
    for name in sides[1]:
        alike.setdefault(tuple(sorted(naming.b[name].items())), []).append(name)
    pairs = [
        (name_a, name_b)
        for name_a in sides[0]
        for name_b in alike.get(tuple(sorted(naming.a[name_a].items())), ())
        if _like(sides[0][name_a], sides[1][name_b])
    ]
    naming.match_all(pairs, "guess")


def _like(norms_a: dict[Hashable, float], norms_b: dict[Hashable, float]) -> bool:
    """Return whether two names have records at common places, and like norms at all of these.

    norms_a, norms_b: the norm of each name's record by place (rank, kind, phase, pass, call, dtype,
        shape).
    """
    shared = norms_a.keys() & norms_b.keys()
    return bool(shared) and all(
        abs(norms_a[place] - norms_b[place]) <= LIKE * max(norms_a[place], norms_b[place])
        for place in shared
    )


def _by_bits(records: Iterator[_Record]) -> dict[Hashable, set[str]]:
    """Return (place, digest) -> the names with such a record, by records that are `telling`."""
    names: dict[Hashable, set[str]] = {}
    for record in records:
        if record.telling:
            names.setdefault((record.place, record.digest), set()).add(record.name)
    return names


def _first_records(
    naming: Naming, a: Table, b: Table, offset: int
) -> tuple[Iterator[_Record], Iterator[_Record]]:
    """Return the records of unmatched names at A's first step, and at the corresponding step of B.

    Where B lacks that step, B's next step is taken; where there is none, step 0.
    offset: what to add to A's steps to get B's.
    """
    first_a = int(a.step.min()) if len(a) else 0
    steps_b = np.unique(b.step)
    matching = steps_b[steps_b >= first_a + offset]
    first_b = int(matching[0]) if len(matching) else 0
    return (
        _records(a, set(naming.left_a), first_a),
        _records(b, set(naming.left_b), first_b),
    )


def _records(table: Table, names: set[str], step: int) -> Iterator[_Record]:
    free = table.where(lambda tensor: tensor.name in names)
    for row in np.flatnonzero((table.step == step) & free).tolist():
        tensor = table.tensors[int(table.tensor[row])]
        extremes = {name: table.figures[name][row].item() for name in ("min", "max", "l2")}
        place = (
            *(tensor.rank, tensor.kind, table.phases[int(table.phase[row])]),
            *(int(table.pass_index[row]), int(table.call[row])),
            *(table.dtypes[int(table.dtype[row])], table.shapes[int(table.shape[row])]),
        )
        high, low = table.digest[row].tolist()
        single = table.figures["numel"][row] == 1 and extremes["l2"] not in (0.0, 1.0)
        telling = bool(single or extremes["min"] < extremes["max"])
        if tensor.kind in STEPPED or tensor.kind.startswith("opt."):
            telling &= bool(table.figures["numel"][row] >= MANY)
        yield _Record(tensor.name, place, (high, low), telling, extremes["l2"])
