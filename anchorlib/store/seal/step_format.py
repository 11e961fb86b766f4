"""Figures of steps as an index stores them: arrays compressed, all else as JSON.

Sizes are checked before memory is allocated for them, because an index may come from anywhere.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from anchorlib.store.format import flag, items, mapping, step, text, whole
from anchorlib.store.seal.codecs import deflated, inflated
from anchorlib.store.seal.index_format import (
    MOST_BYTES,
    MOST_STEPS,
    RankLists,
    numbers_of,
    ranges_of,
)
from anchorlib.store.seal.step_figures import (
    COUNTS,
    MOST_CELLS,
    MOST_WIDTH,
    SPAN,
    FirstNonfinite,
    StepFigures,
    StepLine,
)
from anchorlib.summary import LIMBS, ExactSums

__all__ = ["read_step_figures", "step_figures_document"]

Array = np.ndarray[Any, Any]
_MOST_RANKS: Final = 1 << 20
_FIRST: Final = FirstNonfinite.__slots__


def step_figures_document(figures: StepFigures) -> dict[str, Any]:
    """Return the figures that were counted in each step, as a JSON object to store in an index.

    `read_step_figures` parses it.
    """
    first = figures.first
    return {
        "ranks": ranges_of(figures.ranks),
        "steps": ranges_of(figures.steps.tolist()),
        "width": figures.width,
        "lines": [
            [*one.key, one.first_order, one.first_step, one.last_step, ranges_of(one.ranks)]
            for one in figures.lines
        ],
        "first": None if first is None else [getattr(first, name) for name in _FIRST],
        "arrays": {name: _packed(values) for name, values in figures.arrays().items()},
    }


def read_step_figures(document: Any) -> StepFigures:
    """Parse a document of `step_figures_document`: what was counted in each step.

    Raises ValueError, KeyError or TypeError for any other document.
    """
    one = mapping(document)
    ranks = numbers_of(one["ranks"], _MOST_RANKS)
    known = RankLists(ranks)
    if len(items(one["lines"])) > MOST_CELLS:
        raise ValueError("it has more lines than there can be")
    lines = tuple(_read_line(items(line), known) for line in one["lines"])
    steps = np.array(numbers_of(one["steps"], MOST_STEPS), np.int64)
    width = whole(one["width"], 1, MOST_WIDTH)
    stretches = np.unique(steps // width)
    cells = len(lines) * len(stretches)
    if cells > MOST_CELLS or width & (width - 1) or not _ascending([line.key for line in lines]):
        raise ValueError("its figures of steps are not laid out as figures are")
    if not _ascending(ranks) or (steps[1:] <= steps[:-1]).any():
        raise ValueError("its ranks or steps are not in order")
    packed = mapping(one["arrays"])
    dense = {name: _unpacked(packed[name], np.int64, cells) for name in COUNTS}
    bins, bin_counts = _keyed(packed, "bins", "bin_counts", cells * SPAN)
    squares = ExactSums(*_keyed(packed, "squares", "square_counts", cells * LIMBS))
    if any((values < 0).any() for values in (*dense.values(), bin_counts, squares.counts)):
        raise ValueError("a count is negative")
    figures = StepFigures(
        ranks=ranks,
        steps=steps,
        width=width,
        stretches=stretches,
        lines=lines,
        counts=dense,
        low=_unpacked(packed["low"], np.float64, cells),
        high=_unpacked(packed["high"], np.float64, cells),
        sums=ExactSums(*_keyed(packed, "sums", "sum_counts", cells * LIMBS)),
        squares=squares,
        bins=bins,
        bin_counts=bin_counts,
        first=None if one["first"] is None else _read_first(items(one["first"])),
    )
    if figures.first is not None and figures.first.key not in {line.key for line in lines}:
        raise ValueError("its first record that is not finite has no line")
    return figures


def _packed(values: Array) -> str:
    """Return 8-byte numbers as text: their bytes are reordered, compressed, encoded in base64.

    The order is: the first bytes of all numbers, then the second bytes of all numbers, and so on.
    """
    wide = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    planes = wide.view(np.uint8).reshape(-1, 8).T
    return base64.b64encode(deflated(np.ascontiguousarray(planes).tobytes())).decode()


def _unpacked(packed: Any, dtype: Any, length: int | None = None) -> Array:
    """Return the array of 8-byte numbers that `_packed` packed.

    length: how many numbers it must have; None for any. Raises ValueError for another number of
        them.
    """
    most = MOST_BYTES if length is None else 8 * length
    raw = inflated(base64.b64decode(text(packed), validate=True), most)
    if len(raw) % 8 or (length is not None and len(raw) != most):
        raise ValueError("its figures of steps are not as many as there are cells")
    planes = np.frombuffer(raw, np.uint8).reshape(8, -1).T
    numbers: Array = (
        np.ascontiguousarray(planes).view(np.dtype(dtype).newbyteorder("<")).reshape(-1)
    )
    return numbers.astype(dtype, copy=False)


def _keyed(packed: Mapping[str, Any], keys: str, counts: str, most: int) -> tuple[Array, Array]:
    """Return two unpacked arrays: ascending keys, and a count for each key.

    packed: packed arrays by name. keys, counts: the names of the two arrays in `packed`.
    most: the number below which all keys must be.
    Raises ValueError where a key is negative or not below `most`, where the keys do not ascend, or
    where there is not one count for each key.
    """
    ascending = _unpacked(packed[keys], np.int64)
    # Neighbours are compared: a difference of two of them might not fit into 64 bits.
    if len(ascending) and (
        ascending[0] < 0 or ascending[-1] >= most or (ascending[1:] <= ascending[:-1]).any()
    ):
        raise ValueError("its figures of steps are not in order")
    return ascending, _unpacked(packed[counts], np.int64, len(ascending))


def _read_line(fields: Sequence[Any], known: RankLists) -> StepLine:
    name, kind, mode, phase, order, first, last, own = fields
    key = (text(name), text(kind), text(mode), text(phase))
    return StepLine(key, whole(order), step(first), step(last), known.of(own))


def _read_first(fields: Sequence[Any]) -> FirstNonfinite:
    at, order, rank, key, pass_index, call, nan, inf, numel, before, skipped = fields
    name, kind, mode, phase = map(text, items(key))
    return FirstNonfinite(
        step=step(at),
        order=whole(order),
        rank=whole(rank),
        key=(name, kind, mode, phase),
        pass_index=whole(pass_index),
        call=whole(call),
        nan=whole(nan),
        inf=whole(inf),
        numel=whole(numel),
        before=whole(before),
        skipped=flag(skipped),
    )


def _ascending(values: Sequence[Any]) -> bool:
    return all(one < after for one, after in pairwise(values))
