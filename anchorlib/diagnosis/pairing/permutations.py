"""Samples that one run has in another order within a batch, told by the bits of their rows.

A batch in another order is no other batch: what is made of each sample is the same, and what is
summed over them differs by the order of addition alone. Which sample stands where is read from the
first value of each pass that has the same rows in both runs, in another order; extremes and counts
of its elements, which no order changes, say beforehand where that may be so.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing.alignment import Alignment
from anchorlib.diagnosis.pairing.groups import parameters_of
from anchorlib.diagnosis.pairing.rows import row_digests
from anchorlib.diagnosis.pairing.table import Table
from anchorlib.errors import StoreError

__all__ = ["Orders", "orders", "pass_of"]

Array = np.ndarray[Any, Any]
Orders = Mapping[Hashable, Array]
"""By pass: for each sample of A, where B has it."""
UNORDERED = ("zero", "nan", "inf", "subnormal", "min", "max")
NEAR = 1e-9  # of a norm, which is a sum over all elements in their order
TRIED = 3  # values of a pass, and passes in which nothing is found
MOST = 1 << 16  # samples
ELEMENTS = 4  # of a sample
_DROPPING = re.compile(r"Dropout\w*\((?!p=0(\.0)?[,)])|DropoutBackward|dropout(_p)?=0?\.\d*[1-9]")


def orders(alignment: Alignment) -> Orders:
    """The passes whose samples B has in another order; none where either run drops elements out.

    What drops out is drawn by place: another order is then another mask for each sample.
    """
    told: dict[Hashable, Array] = {}
    failed = 0
    for key, pairs in _candidates(alignment):
        if not (told or failed) and _drops(alignment.a, alignment.b):
            return {}
        told_by = ((p, one) for p in pairs if (one := _order(alignment, p)) is not None)
        pair, order = next(told_by, (-1, None))
        if order is not None and not _made_so(alignment, pair, len(order)):
            told[key] = order
        else:
            failed += 1
        if failed >= TRIED and not told:
            return {}
    return told


def pass_of(table: Table, row: int) -> Hashable:
    """The key that the records of one pass have in common."""
    rank = table.tensors[table.tensor[row]].rank
    return (
        rank,
        table.phases[table.phase[row]],
        int(table.step[row]),
        int(table.pass_index[row]),
    )


def _candidates(alignment: Alignment) -> Iterator[tuple[Hashable, list[int]]]:
    """The first pairs of each pass whose elements may be the same ones, in order of execution."""
    a, b = alignment.a, alignment.b
    pairs = alignment.differing
    parameters = parameters_of(a)
    values = np.array(
        [one.kind == "value" and one.name not in parameters for one in a.tensors] or [False], bool
    )
    pairs = pairs[values[a.tensor[alignment.a_row[pairs]]]]
    one, two = alignment.a_row[pairs], alignment.b_row[pairs]
    alike = (a.figures["numel"][one] > 1) & (a.figures["min"][one] < a.figures["max"][one])
    alike &= (a.figures["numel"][one] == b.figures["numel"][two]) & (a.kept[one] & b.kept[two] > 0)
    for name in UNORDERED:
        alike &= a.figures[name][one] == b.figures[name][two]
    norms = a.figures["l2"][one], b.figures["l2"][two]
    alike &= np.abs(norms[0] - norms[1]) <= NEAR * norms[0]
    passes: dict[Hashable, list[int]] = {}
    for pair in pairs[alike][np.lexsort((a.order[one[alike]], a.step[one[alike]]))].tolist():
        own = passes.setdefault(pass_of(a, int(alignment.a_row[pair])), [])
        if len(own) < TRIED:
            own.append(pair)
    yield from passes.items()


def _order(alignment: Alignment, pair: int) -> Array | None:
    """Where B has each of A's rows; None unless both have the same rows, all of them different."""
    a, b = alignment.a, alignment.b
    row_a, row_b = int(alignment.a_row[pair]), int(alignment.b_row[pair])
    shape = a.shapes[a.shape[row_a]]
    if shape != b.shapes[b.shape[row_b]] or a.dtypes[a.dtype[row_a]] != b.dtypes[b.dtype[row_b]]:
        return None
    # Indices and decisions are no samples: a sample is told by several elements.
    for axis, size in enumerate(shape[: max(len(shape) - 1, 0)][:2]):
        if not 1 < size <= MOST or a.figures["numel"][row_a] < ELEMENTS * size:
            continue
        try:
            one, two = row_digests(a, row_a, axis), row_digests(b, row_b, axis)
        except StoreError:
            return None
        # A sample that a batch holds twice stands first where it stood first.
        places: dict[bytes, list[int]] = {}
        for place, digest in enumerate(two):
            places.setdefault(digest, []).append(place)
        if sorted(one) == sorted(two) and 2 * len(places) > size and one != two:
            return np.array([places[digest].pop(0) for digest in one], np.int64)
    return None


def _made_so(alignment: Alignment, pair: int, count: int) -> bool:
    """Whether code made this order: a parent with as many samples has equal bits in both runs."""
    a, row = alignment.a, int(alignment.a_row[pair])
    tensor = a.tensors[a.tensor[row]]
    own = (tensor.name, a.phases[a.phase[row]], int(a.call[row]))
    told = [one for one in a.edges.get(tensor.rank, ()) if (one.name, one.phase, one.call) == own]
    parents = {parent.name for one in told for parent in one.parents if parent.call is not None}
    before = alignment.a_row[alignment.equal]
    before = before[(a.step[before] == a.step[row]) & (a.order[before] < a.order[row])]
    return any(
        one.kind == "value"
        and one.name in parents
        and count in a.shapes[a.shape[other]]
        and a.figures["min"][other] < a.figures["max"][other]
        and pass_of(a, other) == pass_of(a, row)
        for other in before.tolist()
        for one in [a.tensors[a.tensor[other]]]
    )


def _drops(*tables: Table) -> bool:
    """Whether modules, or operations, say that they drop elements out."""
    return any(_DROPPING.search(text) for table in tables for text in _texts(table))


def _texts(table: Table) -> Iterator[str]:
    for header in table.header.values():
        yield from (text for text in header.values() if isinstance(text, str))
    for told in table.edges.values():
        for edges in told:
            yield from edges.ops
            yield from edges.arguments or ()
