"""Measures how far the records of differing pairs are apart; each pair is read once.

Small pairs of one size and dtypes are read together, and a large pair is read in parts, so that
memory stays bounded whatever the size of a record. Values are compared with their digest: if they
do not have it, they are damaged, and their pair is measured by the records' summaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing import Alignment, packed, shared_codes, stored_values
from anchorlib.diagnosis.sizes.blocks import PairBlock, measure_block, side_of
from anchorlib.diagnosis.sizes.bounds import bounds
from anchorlib.diagnosis.sizes.digest_checks import damaged
from anchorlib.diagnosis.sizes.measures import Damage, Measure, Measures
from anchorlib.diagnosis.sizes.precision import observed_eps
from anchorlib.diagnosis.sizes.ulps import max_ulp
from anchorlib.diagnosis.sizes.values import BLOCK
from anchorlib.dtypes import DType
from anchorlib.progress import Progress
from anchorlib.reading import MapFunction

__all__ = ["max_ulp", "measure"]

Array = np.ndarray[Any, Any]
SAFE = 130
"""The largest exponent of float64 values that are squared unscaled: neither a sum of 2**64 squares
nor squares of values 2**400 times smaller leave the range of float64."""
SCALING = ("min", "max", "sum", "l2")  # figures that are multiplied where values are
WHOLE = ("nonfinite", "zeros", "numel", "worst")


def measure(
    alignment: Alignment, pairs: Array, *, progress: Progress | None = None, over: MapFunction = map
) -> Measures:
    """Return how far the records of these pairs are apart; the result is ascending by pair.

    Records whose values cannot be read, or do not have their digest, are listed in `damaged` of the
    result; their pairs are measured by the records' summaries.
    pairs: indices into the alignment.
    progress: called with the bytes read so far and all the bytes there are to read.
    over: a `map` that runs `measure_block` on each block of pairs; the measures do not depend
        on it.
    """
    pairs = np.unique(np.asarray(pairs, np.int64))
    return _Measuring(alignment, pairs, progress, over).measures()


class _Measuring:
    """The pairs to measure, and the columns of their measures as far as they are known."""

    def __init__(
        self, alignment: Alignment, pairs: Array, progress: Progress | None, over: MapFunction
    ) -> None:
        self.a, self.b = alignment.a, alignment.b
        self.pairs = pairs
        self.row_a, self.row_b = alignment.a_row[pairs], alignment.b_row[pairs]
        self.kinds = [[dtypes.dtype(name) for name in table.dtypes] for table in (self.a, self.b)]
        self.numel = self.a.figures["numel"][self.row_a]
        self.columns = {name: _blank(name, len(pairs)) for name in Measure._fields}
        # A pair's eps is that of the coarser type; nan unless both types round.
        eps = observed_eps(self.a, self.row_a), observed_eps(self.b, self.row_b)
        self.columns["eps"] = np.maximum(*eps)
        self.columns["numel"] = self.numel
        self.scale = _ratio(self.a.scale[self.row_a], self.b.scale[self.row_b])
        self.progress, self.over = progress, over
        self.done = self.total = 0
        self.damaged: list[Damage] = []

    def measures(self) -> Measures:
        """Return the measures of all pairs, from values where both are kept, else from figures."""
        shape_a, shape_b = shared_codes(self.a.shapes, self.b.shapes)
        of_one_shape = shape_a[self.a.shape[self.row_a]] == shape_b[self.b.shape[self.row_b]]
        kept = self.a.kept[self.row_a].astype(bool) & self.b.kept[self.row_b].astype(bool)
        self.columns["measured"] = np.where(
            of_one_shape, np.where(kept, "values", "summary"), "shape"
        )
        self.columns["norm"] = self.a.figures["l2"][self.row_a]
        self._bounds(np.flatnonzero(of_one_shape & ~kept))
        self._values(np.flatnonzero(of_one_shape & kept))
        return Measures(self.pairs, self.columns, tuple(self.damaged))

    def _of_dtypes(self, value: Callable[[DType, DType], float]) -> Array:
        """Return for each pair the result of `value` for its two dtypes."""
        table = np.array(
            [[value(kind_a, kind_b) for kind_b in self.kinds[1]] for kind_a in self.kinds[0]]
        )
        table = table.reshape(len(self.kinds[0]), len(self.kinds[1]))
        values: Array = table[self.a.dtype[self.row_a], self.b.dtype[self.row_b]]
        return values

    def _bounds(self, places: Array) -> None:
        rows = (self.a, self.row_a[places]), (self.b, self.row_b[places])
        figures_a, figures_b = (
            {n: v[row] for n, v in table.figures.items()} for table, row in rows
        )
        for name in SCALING:
            figures_b[name] = figures_b[name] * self.scale[places]
        parts = self._of_dtypes(lambda a, _: 2.0 if a.family == "complex" else 1.0)[places]
        with np.errstate(all="ignore"):
            lower = bounds(
                figures_a, figures_b, self.columns["eps"][places], self.numel[places] * parts
            )
        self._set(places, lower)

    def _set(self, places: Array, columns: dict[str, Array]) -> None:
        for name, values in columns.items():
            self.columns[name][places] = values

    def _values(self, places: Array) -> None:
        widths = self._of_dtypes(lambda a, b: a.storage.itemsize + b.storage.itemsize)
        nbytes = (widths * self.numel).astype(np.int64)
        self.total = int(nbytes[places].sum())
        stored = None not in (stored_values(self.a), stored_values(self.b))
        # Values that the comparison computed are in this process alone.
        over = self.over if stored else map
        for block in over(measure_block, self._blocks(places)):
            for places_read, columns in block.measured:
                self._set(places_read, columns)
            for places_read, side, why in block.damaged:
                self._damage(places_read, side, why)
            self._tell(int(nbytes[block.places].sum()))

    def _blocks(self, places: Array) -> Iterator[PairBlock]:
        """Yield the pairs in blocks, each of one size and one pair of dtypes."""
        groups = packed([self.a.dtype[self.row_a], self.b.dtype[self.row_b], self.numel])[places]
        # Records of one dtype and shape lie side by side in the store, in the order they were made.
        order = np.lexsort((self.row_a[places], groups))
        for group in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
            if not len(group):
                continue
            size = int(self.numel[places[group[0]]])
            many = max(BLOCK // max(size, 1), 1)
            for start in range(0, len(group), many):
                yield self._block(places[group[start : start + many]], size)

    def _block(self, part: Array, size: int) -> PairBlock:
        kind_a = self.kinds[0][self.a.dtype[self.row_a[part[0]]]]
        kind_b = self.kinds[1][self.b.dtype[self.row_b[part[0]]]]
        return PairBlock(
            part,
            side_of(self.a, self.row_a[part], kind_a, size),
            side_of(self.b, self.row_b[part], kind_b, size),
            self._shift(part, kind_a, kind_b),
            self.columns["eps"][part],
            self.scale[part],
        )

    def _damage(self, places: Array, side: str, why: str) -> None:
        """Measure pairs by their figures, since their values in one run are damaged.

        A `Damage` for each of these pairs is added to `damaged`.
        places: the indices of the pairs in `pairs`. side: the run, "a" or "b". why: what is wrong
        with the values.
        """
        table, rows = (self.a, self.row_a) if side == "a" else (self.b, self.row_b)
        for place in places.tolist():
            line = damaged(table, int(rows[place]), why)
            self.damaged.append(Damage(int(self.pairs[place]), line))
        for name in ("share_differing", "bias", "cosine_distance", "worst", "value_a", "value_b"):
            self.columns[name][places] = _blank(name, 1)
        self.columns["measured"][places] = "summary"
        self._bounds(places)

    def _shift(self, places: Array, kind_a: DType, kind_b: DType) -> Array:
        """Return for each pair the exponent of a power of two by which its values are to be scaled.

        The squares of scaled float64 values stay inside float64. 0 where no scaling is needed.
        """
        if np.float64(0).itemsize not in (part_size(kind_a), part_size(kind_b)):
            return np.zeros(len(places), np.int64)
        rows = (self.a.figures, self.row_a[places]), (self.b.figures, self.row_b[places])
        ends = [np.abs(figures[name][row]) for figures, row in rows for name in ("min", "max")]
        exponent = np.frexp(np.fmax.reduce(ends))[1].astype(np.int64)
        return np.where(np.abs(exponent) > SAFE, -exponent, 0)

    def _tell(self, nbytes: int) -> None:
        self.done += nbytes
        if self.progress is not None:
            self.progress(self.done, self.total)


def _ratio(a: Array, b: Array) -> Array:
    """Return for each pair the factor that brings B's values to A's loss scale.

    a, b: the loss scales of A's and B's records. The factor is 1 where no usable scale is stated.
    """
    with np.errstate(all="ignore"):
        factor: Array = a / b
    factor[~(np.isfinite(factor) & (factor > 0))] = 1.0
    return factor


def part_size(kind: DType) -> int:
    """Return the bytes of one number of a dtype; for a complex dtype, of its real part."""
    return kind.storage.itemsize // (2 if kind.family == "complex" else 1)


def _blank(name: str, count: int) -> Array:
    if name == "measured":
        return np.full(count, "values", "U7")
    if name in WHOLE:
        return np.full(count, -1 if name == "worst" else 0, np.int64)
    return np.full(count, np.nan)
