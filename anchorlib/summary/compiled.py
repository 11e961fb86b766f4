"""The compiled scan of `kernels`, linked into a process that has summarised enough bytes.

    WORTH bytes scanned ─▶ a child compiles, and compares with numpy ─▶ linked: one call an array

Callers use numpy instead until then, without the extra `fast`, and where anything goes wrong.
No recording waits for the child process, which takes about three seconds at low priority; linking
takes 30 ms. A child that somebody waits for (`Scans.load`, as `anchor doctor` does) runs at normal
priority.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from anchorlib.dtypes import DTYPES
from anchorlib.summary import float_bits
from anchorlib.summary.exponent_counts import FloatTally
from anchorlib.summary.float_bits import BLOCK, DOUBLE, SCRATCH, SINGLE, blocks, elements
from anchorlib.summary.moments import NONE, SAFE, FloatMoments
from anchorlib.summary.object_file import Compiling, linked

if TYPE_CHECKING:
    from collections.abc import Callable

    from anchorlib.dtypes import DType
    from anchorlib.summary.float_bits import BitLayout
    from anchorlib.summary.moments import Moments
    from anchorlib.summary.object_file import Function

__all__ = ["SCANS", "Pieces", "Scan", "Scans", "compared"]

Array = np.ndarray[Any, Any]

WORTH: Final = 1 << 29
"""A process has the scan compiled after so many bytes, for which numpy takes half a second."""

LEAST: Final = 1 << 10
"""From so many elements on a call of the compiled scan is faster than numpy."""

COUNT_ONLY: Final = -1

ORDER: Final = "what was compiled adds in another order than numpy"

LAYOUTS: Final = {"single": SINGLE, "double": DOUBLE}


class _Room(threading.local):
    """The counters and sums that the scans of one element type fill, separate for each thread."""

    def __init__(self, layout: BitLayout) -> None:
        self.counts = np.zeros((4, 2 * layout.fields), np.int64)
        self.counted = np.zeros(layout.mantissa + 1, np.int64)
        self.ends = np.zeros(3, np.int64)
        self.sums = np.zeros(2, np.float64)
        self._none = (layout.sign - 1, -layout.sign, 0)
        arrays = (self.counts, self.counted, self.ends, self.sums, SCRATCH.double)
        self.addresses = [array.ctypes.data for array in arrays]
        self._unused = np.zeros(2, np.int64)  # for a result and an exception that never come
        self.unused = [self._unused.ctypes.data, self._unused.ctypes.data + 8]

    def clear(self) -> None:
        """Reset all counters and sums for the next array."""
        self.counts.fill(0)
        self.counted.fill(0)
        self.ends[:] = self._none
        self.sums.fill(0)


class Scan:
    """One compiled pass over floats of one bit layout, for the exponent counts and the moments.

    The results equal those of FloatTally and FloatMoments, which compute them with numpy.
    """

    def __init__(self, layout: BitLayout, function: Function) -> None:
        self._layout = layout
        self._function = function
        self._room = _Room(layout)

    def tally(self, flat: Array, kind: DType) -> FloatTally:
        """Return the exponent counts of the elements `flat` of type `kind` (both from `parts`)."""
        self._add(flat, kind, COUNT_ONLY)
        return self._tally()

    def both(self, flat: Array, kind: DType) -> tuple[FloatTally, Moments] | None:
        """Return the exponent counts and the moments of the elements `flat` of type `kind`.

        The moments are (min, max, sum, l2). Returns None if squares of elements would leave
        float64's range: only FloatMoments can scale them.
        """
        self._add(flat, kind, SAFE)
        low, high, unsafe = self._room.ends.tolist()
        if unsafe:
            return None
        if low > high:
            return self._tally(), NONE
        total, squares = self._room.sums.tolist()
        ends = self._layout.ordered(low), self._layout.ordered(high)
        return self._tally(), (*ends, 0.0 + total, math.sqrt(squares))

    def _add(self, flat: Array, kind: DType, safe: int) -> None:
        self._room.clear()
        if kind.storage == self._layout.floating:
            self._call(flat, safe)
            return
        for block in blocks(flat):
            self._call(elements(block, kind), safe)

    def _call(self, values: Array, safe: int) -> None:
        room, address = self._room, values.ctypes.data
        self._function(
            *room.unused, address, address, values.size, float_bits.BLOCK, safe, *room.addresses
        )

    def _tally(self) -> FloatTally:
        room = self._room
        inf = int(room.counted[-1])
        low = room.counted[:-1].copy() if room.counted.any() else None
        return FloatTally.of(self._layout, room.counts.sum(axis=0), low, inf)


class Pieces(NamedTuple):
    """The figures of many small float32 arrays; each field has one entry (or row) per array.

    counts: a row for each array: how many of its elements have each exponent field.
    odd: whether the array has a NaN, an infinity or a subnormal; its other figures are wrong then.
    low, high: the smallest and the largest element, as int32 numbers that are ordered as the values
    are.
    sums, squares: the sums of the values and of their squares.
    """

    counts: Array
    odd: Array
    low: Array
    high: Array
    sums: Array
    squares: Array


def _pieces_by(function: Function) -> Callable[[Array, Array], Pieces]:
    def pieces(values: Array, bounds: Array) -> Pieces:
        number = bounds.size - 1
        counts = np.zeros((number, SINGLE.fields), np.int64)
        ends, sums = np.empty((number, 3), np.int64), np.empty((number, 2))
        unused = np.empty(2, np.int64)
        first, second, at, bounds_at, counts_at, ends_at, sums_at = (
            array.ctypes.data for array in (unused, unused[1:], values, bounds, counts, ends, sums)
        )
        function(first, second, at, at, bounds_at, number, counts_at, ends_at, sums_at)
        low, high, odd = ends.T
        return Pieces(counts, odd > 0, low.astype("<i4"), high.astype("<i4"), *sums.T)

    return pieces


class Scans:
    """The compiled scans of this process, compiled and linked once that is worth while.

    fault: why this process has no compiled scans and never will; None if it has, or still may.
    """

    def __init__(self) -> None:
        self._ready: dict[str, Scan] = {}
        self.pieces: Callable[[Array, Array], Pieces] | None = None
        """The compiled counterpart of `columns._pieces`; None until it is linked.

        Its arguments are the values of all arrays (float32), and their starts and last end (int64).
        """
        self._seen = 0
        self._lock = threading.Lock()
        self._compiling: Compiling | None = None
        self.fault: str | None = None

    def get(self, layout: BitLayout, flat: Array) -> Scan | None:
        """Return the compiled scan to use for the array `flat`; None to use numpy.

        The result is None if no scan is linked yet, if numpy is faster, or if `flat` is not aligned
        in memory. The call notes how many bytes are summarised. After WORTH bytes it starts the
        process that compiles the scans, and later calls link what that process made; no call waits.
        """
        if self._ready:
            name = "double" if layout is DOUBLE else "single"
            return self._ready[name] if flat.size >= LEAST and flat.flags.aligned else None
        if self.fault is None:
            self._seen += flat.nbytes
            if self._seen >= WORTH and self._lock.acquire(blocking=False):
                try:
                    self._go_on(wait=False)
                finally:
                    self._lock.release()
        return None

    def load(self) -> str | None:
        """Wait until the scans are linked; return None, or `fault` if they cannot be."""
        with self._lock:
            while not self._ready and self.fault is None:
                self._go_on(wait=True)
        return self.fault

    def _go_on(self, *, wait: bool) -> None:
        try:
            if self._compiling is None:
                self._compiling = Compiling(awaited=wait)
            code = self._compiling.code(wait=wait)
            if code is not None:
                self._ready, self.pieces = _linked(code)
        except Exception as fault:  # noqa: BLE001  # numpy gives the same results in any case
            self.fault = f"{type(fault).__name__}: {fault}"


def _linked(code: bytes) -> tuple[dict[str, Scan], Callable[[Array, Array], Pieces]]:
    functions = linked(code, {"single": 12, "double": 12, "pieces": 9})
    scans = {name: Scan(layout, functions[name]) for name, layout in LAYOUTS.items()}
    return scans, _pieces_by(functions["pieces"])


def compared(code: bytes) -> None:
    """Raise ArithmeticError if a scan of the object file `code` gives other bits than numpy.

    Another version of numpy may add in another order; a compiler may contract multiply and add.
    """
    (scans, pieces), random = _linked(code), np.random.default_rng(0)
    for name, layout in LAYOUTS.items():
        for size in (1, 7, 9, 129, 1001, BLOCK + 1003):
            values = random.standard_normal(size).astype(layout.floating)
            for rare in ([], [0.0], [np.nan, -np.inf, layout.value(3), -0.0]):
                values[: len(rare)] = rare[:size]
                _agree(scans[name], values, DTYPES[f"float{8 * values.itemsize}"], layout)
    values, bounds = random.standard_normal(700).astype("<f4"), np.array([0, 300, 700])
    sums = [values[:300].astype("<f8").sum(), values[300:].astype("<f8").sum()]
    if pieces(values, bounds).sums.tolist() != sums:
        raise ArithmeticError(ORDER)


def _agree(scan: Scan, values: Array, kind: DType, layout: BitLayout) -> None:
    tally, moments = FloatTally(layout), FloatMoments(layout)
    with np.errstate(all="ignore"):
        for finite in tally.add(values, kind):
            moments.add(finite)
    scanned = scan.both(values, kind)
    # Compared as text, in which nan equals nan, and -0.0 differs from 0.0.
    numpys = repr((tally.histogram(kind), moments.result()))
    if scanned is None or repr((scanned[0].histogram(kind), scanned[1])) != numpys:
        raise ArithmeticError(ORDER)


SCANS: Final = Scans()
