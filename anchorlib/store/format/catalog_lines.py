"""The lines of a rank's catalogue: what each says, and the entries that a writer makes of them.

    {"rank": 0, "version": 2, "uid": "9f…", "created_ns": …, "checked": 0}   the first line
    {"attempt": 0, "writer_id": "…", "first_row": 0, "order_base": 0, "started_ns": …, "header": {}}
    {"series": 0, "name": "fc1", "kind": "grad", "mode": "all"}
    {"form": 0, "dtype": "float32", "shape": [10]}                  a flat form: "width" for "shape"
    {"array": 0, "rows": 26214}                                     form 0 keeps values now
    {"phase": 0, "name": "train"}
    {"gap": {…}, "attempt": 0}   {"edges": {…}, "attempt": 0}
    {"header_of": 0, "entries": {"torch.backend": "inductor"}}      added to attempt 0's header
    {"state": "closed"}   {"published": 120}

A form is what records of one dtype and shape have in common (`form`); a flat form holds records of
many shapes. An attempt is what one writer recorded of the rank.

Lines are only ever appended, and later lines win. A line is complete when its line end is there:
bytes behind the last line end are a line that is being written, or that a crash cut off. Keys that
this version does not know are ignored. Each line ends with its own checksum, `"check": "<hex>"`;
catalogues without a `checked` entry were made by an older writer, whose lines have no checksums.
Rows have checksums from row `checked` on.

`writer_id` is the claim of the attempt's writer, that is, a hash of the writer's secret: whoever
reads the hash still cannot continue the attempt in that writer's place. `format1` says what differs
in format 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from anchorlib.record import Gap
from anchorlib.store.format.checks import seal_line, seed_of
from anchorlib.store.format.fields import step, text, whole
from anchorlib.store.format.parts import Begins

__all__ = [
    "Attempt",
    "SeriesEntry",
    "attempt_line",
    "encode",
    "gap_line",
    "header_line",
    "read_gap",
    "whole_lines",
]


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one writer recorded of a rank; each resume of the rank adds an attempt.

    claim: the hash of the writer's secret (`anchorlib.claims`). Whoever has the secret may continue
        this attempt; empty where nobody may.

    header: facts about the attempt, such as versions, with the entries that were added since the
        attempt began.

    first_row: the attempt's first row in the rank's table. order_base: what is added to the `order`
        of its records, so that `order` keeps growing over attempts.

    first: the number of the record in `first_row`, as the writer counts the records it sends; above
        0 where another collector that shares the rank has the records before.

    begins: where several collectors share the rank, how the attempt began: "new" under a name that
        no run had, "anew" in place of earlier records, "resumed" behind them; "" where one
        collector has the whole rank.

    restart: how often the launcher had restarted the job; None where this is not known.
    """

    number: int
    claim: bytes
    started_ns: int
    header: Mapping[str, Any]
    first_row: int
    order_base: int
    first: int = 0
    begins: Begins = ""
    restart: int | None = None


@dataclass(frozen=True, slots=True)
class SeriesEntry:
    """A series (all records of one tensor, kind and mode), and its number in a rank's catalogue."""

    id: int
    name: str
    kind: str
    mode: str

    @property
    def seed(self) -> int:
        """The seed of the series, one of the two numbers that seed the checksum of a row.

        It is XORed with the seed of the row's form (dtype and shape).
        """
        return seed_of(self.name, self.kind, self.mode)


def encode(entry: Mapping[str, Any]) -> bytes:
    """Return an entry as one line of the catalogue: ASCII JSON with a checksum and a line end."""
    line = json.dumps(entry, allow_nan=False, separators=(",", ":"))
    return seal_line(line.encode()) + b"\n"


def attempt_line(attempt: Attempt) -> dict[str, Any]:
    """Return the catalogue entry of an attempt, that is, of what one writer recorded of the rank.

    The zarr.json of the rank lists the same entries.
    """
    part = {"first": attempt.first, "begins": attempt.begins, "restart": attempt.restart}
    return {
        "attempt": attempt.number,
        "writer_id": attempt.claim.hex(),
        "started_ns": attempt.started_ns,
        "first_row": attempt.first_row,
        "order_base": attempt.order_base,
        "header": attempt.header,
        **({"part": part} if attempt.begins else {}),
    }


def header_line(attempt: int, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the catalogue entry that adds entries to the header of attempt number `attempt`.

    Where the header has an entry of that name already, the newer value wins.
    """
    return {"header_of": attempt, "entries": entries}


def gap_line(attempt: int, gap: Gap) -> dict[str, Any]:
    """Return the catalogue entry of a gap (observations of a tensor that were not recorded).

    The count is a total, so that a later line with the same series and reason replaces the earlier
    lines of attempt number `attempt`.
    """
    return {"gap": asdict(gap), "attempt": attempt}


def read_gap(fields: Mapping[str, Any]) -> Gap:
    """Return the gap (observations that were not recorded) that `fields` describe.

    fields: those of `Gap` by name, read from a catalogue line or an index. Raises ValueError,
        KeyError or TypeError where a field is missing, or has a value of another type or out of
        bounds.
    """
    return Gap(
        text(fields["name"]),
        text(fields["kind"]),
        text(fields["mode"]),
        text(fields["reason"]),
        count=whole(fields["count"]),
        first_step=step(fields["first_step"]),
        last_step=step(fields["last_step"]),
    )


def whole_lines(raw: bytes) -> tuple[list[bytes], int]:
    """Return the complete lines of `raw`, without line ends, and the offset behind the last one.

    What follows that offset is a line that is not written to its end yet, or zeros.
    """
    end = raw.find(b"\0")
    end = raw.rfind(b"\n", 0, len(raw) if end < 0 else end) + 1
    return raw[:end].splitlines(), end
