"""The measures that say how far the two records of a pair are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Damage", "Measure", "Measures"]

UNRELATED = 0.3
"""The cosine distance from which two tensors are not variants of one another."""
Array = np.ndarray[Any, Any]


class Measure(NamedTuple):
    """How far b is from a, element by element, in float64; a complex element is its two parts.

    Where the records carry different loss scales, as they state, b is first multiplied so that it
    carries a's. Floats that are not known are nan; `nonfinite` and `zeros` are then 0.

    eps: the eps of the coarser dtype; nan for integers and bool. A sum has the dtype of its
        terms here, not the wider one in which they were summed (`sizes.precision.observed`).
    error_eps: ‖b − a‖₂ / (‖a‖₂ · eps) over the elements that are finite in both, without those that
        a mask filled with one large negative number in both; 0 where they are equal; inf where a is
        all zero and b is not; nan where there is nothing to measure (shapes differ, no values kept,
        integers, no element finite in both).
    max_eps: max|b − a| / (max|a| · eps); 0, inf and nan as for `error_eps`.
    share_differing: the share of elements whose bits differ (where the dtypes differ, of elements
        that differ even when rounded to the coarser dtype); nan where unknown.
    max_abs: max|b − a|.
    bias: |Σ(b − a)| / Σ|b − a|; 1 means that all differences have one sign.
    cosine_distance: 1 − cos(a, b), as ½‖a/‖a‖ − b/‖b‖‖².
    norm: ‖a‖₂ over the finite elements, without those that a mask filled.
    nonfinite: how many elements are NaN or infinite in one record alone, or NaN in one and infinite
        in the other, or infinite with other signs.
    zeros: how many elements are zero in one record alone.
    numel: elements of a.
    worst: the flat C-order index of the element with max|b − a|; where the finite elements are
        equal, of the first element that `nonfinite` counts; -1 if unknown, or if only signs of
        zeros or bits of NaNs differ. `value_a` and `value_b` are a and b there (of a complex
        element the part that differs most).
    measured: "values", "summary" (bounds from the summary rows alone: error_eps is then a lower
        bound), or "shape" where shapes differ.
    """

    eps: float
    error_eps: float
    max_eps: float
    share_differing: float
    max_abs: float
    bias: float
    cosine_distance: float
    norm: float
    nonfinite: int
    zeros: int
    numel: int
    worst: int
    value_a: float
    value_b: float
    measured: str

    @property
    def unrelated(self) -> bool:
        """Whether the two tensors have only a name in common: b is no variant of a, nor of −a.

        The criterion is their cosine distance.
        """
        return UNRELATED <= self.cosine_distance <= 2 - UNRELATED


class Damage(NamedTuple):
    """One record whose values are damaged, so that its pair is measured by the summaries.

    pair: the pair's index in the alignment. line: which record of which run it is, for people.
    """

    pair: int
    line: str


@dataclass(frozen=True, slots=True)
class Measures:
    """The measures of some pairs of an alignment, one entry for each pair.

    pair: indices into the alignment, ascending.
    columns: the fields of Measure by name, each an array with an entry for each of `pair`.
    damaged: records whose values are damaged; their pairs are measured by their summaries.
    """

    pair: Array
    columns: dict[str, Array]
    damaged: tuple[Damage, ...] = ()

    def __len__(self) -> int:
        return len(self.pair)

    def __getitem__(self, column: str) -> Array:
        return self.columns[column]

    def at(self, place: int) -> Measure:
        """Return the measure of one pair. place: the pair's index in `pair`."""
        return Measure(*(self.columns[name][place].item() for name in Measure._fields))

    def without(self, pairs: Array) -> Measures:
        """Return the measures of all pairs but these. pairs: indices into the alignment."""
        if not len(pairs):
            return self
        left = ~np.isin(self.pair, pairs)
        columns = {name: column[left] for name, column in self.columns.items()}
        damaged = tuple(damage for damage in self.damaged if damage.pair not in set(pairs.tolist()))
        return Measures(self.pair[left], columns, damaged)
