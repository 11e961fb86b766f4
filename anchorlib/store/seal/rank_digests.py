"""Digests of a rank's records: comparing those of two runs is enough where the runs are equal.

    steps      one digest for each stretch (range) of steps, over what was recorded in them: each
               record's name, kind, mode, phase, pass, call, dtype, shape and digest of its values
    outline    one digest over everything else that a comparison reads of a rank: order, attempts,
               flags, lineage (what each value was computed from), and the header entries that do
               not differ between the processes of a run

Two ranks with equal digests of steps recorded the same values, bit for bit. Two ranks of one run
with equal outlines have equal tables but for values, so that one of them can stand for the other.

A stretch is `width` steps long, a power of two, and begins at a multiple of `width`. The digest of
a longer stretch is made of the digests of its halves, so that digests of different widths can be
compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from anchorlib.store.format import mapping, text, whole
from anchorlib.store.seal.index_format import numbers_of, ranges_of
from anchorlib.store.stored import RankRecords, visible_rows

__all__ = ["MOST_STRETCHES", "RankDigests", "digests_of", "read_digests"]

Array = np.ndarray[Any, Any]
MOST_STRETCHES: Final = 4096
"""The most digests of steps that a rank has; with more steps, each digest covers more of them."""
_MOST_WIDTH: Final = 1 << 60
"""The widest stretch of steps that is read: sixteen of them cover all 64-bit step numbers."""
_SIZE: Final = 16  # bytes of a digest: the first half of a SHA-256
_STEP: Final = b"anchor step 1\0"
_STEPS: Final = b"anchor steps 1\0"
_OUTLINE: Final = b"anchor outline 1\0"
_AT_ONCE: Final = 1 << 16  # records that are laid out at a time
_COLUMNS: Final = (
    *("phase", "step", "pass_index", "call", "order", "attempt", "count", "flags", "scale"),
    "form",
)
_OF_THE_PROCESS: Final = (
    "pid",
    "host",
    "time",
    "started",
    "env.",
    "history.",
    "torch.initial_seed",
)
"""How the names of header entries begin that differ between the processes of a run.

The outline's digest leaves them out.
"""


@dataclass(frozen=True, slots=True)
class RankDigests:
    """Hashes of one rank's visible records, by which ranks are compared without reading them.

    Of records that a resumed run recorded again, only the later ones are visible.
    outline: the digest of what a comparison reads beside values: order, attempts, flags, lineage
        (what each value was computed from), header. is_traced: whether the rank has entries in its
        log of traced operations, which no digest covers.
    width: how many steps a stretch (range of steps with one digest) has. stretches: the digest of
        each stretch that has records, by its number (its first step divided by the width),
        ascending.
    """

    outline: bytes
    is_traced: bool
    width: int
    stretches: Mapping[int, bytes]

    def of_width(self, width: int) -> RankDigests:
        """Return digests that each cover at least `width` steps, made of the present digests.

        width: a power of two. `self` is returned if its digests cover as many steps already.
        """
        digests = self
        while digests.width < width:
            digests = replace(
                digests, width=2 * digests.width, stretches=_halved(digests.stretches)
            )
        return digests

    def bounded(self, most: int) -> RankDigests:
        """Return digests over more steps each, so that there are at most `most` of them.

        `self` is returned if it has no more than `most`.
        """
        digests = self
        while len(digests.stretches) > most:
            digests = digests.of_width(2 * digests.width)
        return digests

    def document(self) -> dict[str, Any]:
        """Return the digests as a JSON object for an index, which `read_digests` parses."""
        return {
            "outline": self.outline.hex(),
            "is_traced": self.is_traced,
            "width": self.width,
            "stretches": ranges_of(list(self.stretches)),
            "digests": b"".join(self.stretches.values()).hex(),
        }


def read_digests(document: Any) -> RankDigests:
    """Parse the digests (hashes of records by steps) in a document of `RankDigests.document`.

    Raises ValueError, KeyError or TypeError for any other document.
    """
    one = mapping(document)
    width, raw = whole(one["width"], 1, _MOST_WIDTH), bytes.fromhex(text(one["digests"]))
    outline = bytes.fromhex(text(one["outline"]))
    numbers = numbers_of(one["stretches"], min(MOST_STRETCHES, len(raw) // _SIZE))
    if any(one >= after for one, after in pairwise(numbers)):
        raise ValueError("its stretches are not in order")
    # Each stretch of steps must have a digest: a missing one would hide a difference.
    if width & (width - 1) or len(raw) != _SIZE * len(numbers) or len(outline) != _SIZE:
        raise ValueError("its digests are not those of its steps")
    digests = (raw[at : at + _SIZE] for at in range(0, len(raw), _SIZE))
    return RankDigests(
        outline, one["is_traced"] is not False, width, dict(zip(numbers, digests, strict=True))
    )


def digests_of(reader: RankRecords) -> RankDigests:
    """Compute the digests of a rank: hashes of its visible records, one for each range of steps.

    Of records that a resumed run recorded again, only the later ones are visible. Raises
    DamagedError where the rank's log of operations is damaged.
    """
    rows = visible_rows(reader)
    digests = RankDigests(
        _outline(reader, rows), bool(reader.operations()), 1, _step_digests(reader, rows)
    )
    return digests.bounded(MOST_STRETCHES)


def _step_digests(reader: RankRecords, rows: Array) -> dict[int, bytes]:
    """Return the digest of each step that has records, by step, ascending.

    rows: the row numbers of the records, in order of execution.
    """
    step = reader.column("step")[rows]
    laid = _RecordBytes(reader)
    order = np.lexsort((*laid.places(rows), step))
    rows, step = rows[order], step[order]
    digests = {}
    for first, stop in _parts(step):
        part, steps = laid.records(rows[first:stop]), step[first:stop]
        cuts = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1)).tolist()
        for begin, end in zip(cuts, [*cuts[1:], len(steps)], strict=True):
            number = int(steps[begin])
            digests[number] = _hash(_STEP, b"%d\0" % number, part[begin:end].tobytes())
    return digests


def _parts(step: Array) -> Iterator[tuple[int, int]]:
    """Yield ranges (first, stop) of records, about `_AT_ONCE` at a time; no step is split.

    step: the step of each record, ascending.
    """
    first = 0
    while first < len(step):
        last = step[min(first + _AT_ONCE, len(step)) - 1]
        stop = int(np.searchsorted(step, last, "right"))
        yield first, stop
        first = stop


class _RecordBytes:
    """Writes records as bytes that do not depend on how a rank numbers its series and forms."""

    def __init__(self, reader: RankRecords) -> None:
        catalogue = reader.catalogue
        self._reader = reader
        self._series = _labels([[one.name, one.kind, one.mode] for one in catalogue.series])
        self._phases = _labels([[one] for one in catalogue.phases])
        self._dtypes = _labels([[one.dtype] for one in catalogue.forms])

    def places(self, rows: Array) -> tuple[Array, ...]:
        """Return arrays for `np.lexsort` by which the records of a step are sorted.

        The four arrays hold the call, pass, phase and series of each record. `lexsort` sorts by
        its last key first, so by the series first and by the call last.

        rows: the row numbers of the records, in order of execution; records that are equal in all
            four keep this order.
        """
        column = self._reader.column
        return (
            *(column(name)[rows] for name in ("call", "pass_index")),
            _ranked(self._phases)[column("phase")[rows]],
            _ranked(self._series)[self._reader.series_ids[rows]],
        )

    def records(self, rows: Array) -> Array:
        """Return a row of bytes (uint8) for each record: all that a digest of steps covers.

        The bytes stand for the record's name, kind, mode, phase, dtype, shape, pass, call and the
        digest of its values. rows: the row numbers of the records.
        """
        column, reader = self._reader.column, self._reader
        shapes, codes = reader.shape_codes(rows)
        numbers = [column(name)[rows].astype("<i8") for name in ("pass_index", "call")]
        digest = [column(name)[rows].astype(">u8") for name in ("digest_high", "digest_low")]
        return np.concatenate(
            [
                self._series[reader.series_ids[rows]],
                self._phases[column("phase")[rows]],
                self._dtypes[column("form")[rows]],
                _labels([list(shape) for shape in shapes])[codes],
                np.stack(numbers, 1).view(np.uint8),
                np.stack(digest, 1).view(np.uint8),
            ],
            axis=1,
        )


def _labels(values: Sequence[Sequence[Any]]) -> Array:
    """Return the digest of the JSON of each value, as an array of bytes: (len(values), 16)."""
    raw = b"".join(_hash(b"", json.dumps(one).encode()) for one in values)
    return np.frombuffer(raw, np.uint8).reshape(-1, _SIZE)


def _ranked(labels: Array) -> Array:
    """Return for each digest its position in the sorted list of the different digests.

    labels: the digests, a row of bytes each.
    """
    _, places = np.unique(labels, axis=0, return_inverse=True)
    return np.asarray(places).reshape(-1)


def _outline(reader: RankRecords, rows: Array) -> bytes:
    """Return one digest over all that a comparison of ranks reads besides the digests of steps.

    The digest covers order, attempts, flags, which values are stored, lineage (what each value was
    computed from), and the last attempt's header without entries that differ between processes.
    rows: the numbers of the visible rows, in order of execution.
    """
    catalogue = reader.catalogue
    shapes, codes = reader.shape_codes(rows)
    header = catalogue.attempts[-1].header if catalogue.attempts else {}
    outline = {
        "series": [[one.name, one.kind, one.mode] for one in catalogue.series],
        "forms": [one.dtype for one in catalogue.forms],
        "phases": list(catalogue.phases),
        "shapes": shapes,
        "edges": [asdict(one) for one in catalogue.edges.values()],
        "header": [
            [name, value] for name, value in header.items() if not name.startswith(_OF_THE_PROCESS)
        ],
    }
    parts = [json.dumps(outline, default=repr).encode()]
    parts += [np.ascontiguousarray(reader.column(name)[rows]).tobytes() for name in _COLUMNS]
    others = (reader.series_ids[rows], codes, reader.kept(rows))
    parts += [np.asarray(one).astype("<i8").tobytes() for one in others]
    return _hash(_OUTLINE, *(b"%d\0" % len(part) + part for part in parts))


def _halved(stretches: Mapping[int, bytes]) -> dict[int, bytes]:
    """Return the digests of stretches (ranges of steps) that are twice as long, by their numbers.

    stretches: the present digests, by number (first step divided by the width).
    """
    none = bytes(_SIZE)
    return {
        number: _hash(_STEPS, *(stretches.get(2 * number + half, none) for half in (0, 1)))
        for number in dict.fromkeys(one // 2 for one in stretches)
    }


def _hash(domain: bytes, *parts: bytes) -> bytes:
    hasher = hashlib.sha256(domain)
    for part in parts:
        hasher.update(part)
    return hasher.digest()[:_SIZE]
