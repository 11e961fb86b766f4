"""The catalogue of one rank: what its rows speak of, as JSON lines that are only ever added to.

    {"rank": 0, "version": 1, "uid": "9f…", "created_ns": …, "checked": 0}   the first line
    {"attempt": 0, "writer_id": "…", "first_row": 0, "order_base": 0, "started_ns": …, "header": {}}
    {"series": 0, "name": "fc1", "kind": "grad", "mode": "all", "path": "fc1/grad"}
    {"variant": 0, "series": 0, "dtype": "float32", "shape": [10]}   flat: {"ndim": 2} for a shape
    {"array": 0, "name": "value", "rows": 3276}                      variant 0 keeps values now
    {"phase": 0, "name": "train"}
    {"gap": {…}, "attempt": 0}   {"edges": {…}, "attempt": 0}
    {"header_of": 0, "entries": {"torch.backend": "inductor"}}      attempt 0 learned this since
    {"state": "closed"}   {"published": 120}

Later lines win. A line is whole when its line end is there: what follows the last line end was cut
off by a crash. Keys that this version does not know are left alone. Each line ends with its own
checksum, `"check": "<hex>"`; where `checked` was never said, an older writer made lines without.
From row `checked` on rows have theirs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from anchorlib.errors import StoreError
from anchorlib.record import Edges, Gap
from anchorlib.store.checks import identity, is_sound, seal_line
from anchorlib.store.edges import EdgesKey, edges_key, read_edges
from anchorlib.store.layout import VERSION

__all__ = ["Attempt", "Catalogue", "SeriesEntry", "Variant", "encode", "whole_lines"]

GapKey = tuple[int, str, str, str, str]  # attempt, name, kind, mode, reason


@dataclass(frozen=True, slots=True)
class Attempt:
    """One writer's share of a rank: the first, and one more for each resume.

    header: with what it has learned since it began.
    """

    number: int
    writer_id: bytes
    started_ns: int
    header: Mapping[str, Any]
    first_row: int
    order_base: int


@dataclass(frozen=True, slots=True)
class SeriesEntry:
    """A series as the catalogue knows it; `path` is its group below `tensors/`."""

    id: int
    name: str
    kind: str
    mode: str
    path: str


@dataclass(frozen=True, slots=True)
class Variant:
    """Records of one series that have dtype and shape in common.

    shape: None for a flat variant, whose records have shapes of `ndim` dimensions each their own.
    array: the array's name in the series' group, None as long as no values were kept.
    rows: records a chunk of that array holds.
    """

    id: int
    series: int
    dtype: str
    shape: tuple[int, ...] | None
    ndim: int
    array: str | None = None
    rows: int = 1

    @property
    def flat(self) -> bool:
        """Whether its records have shapes of their own."""
        return self.shape is None

    def identity(self, series: SeriesEntry) -> int:
        """What seeds the checksums of its rows."""
        names = (series.name, series.kind, series.mode)
        return identity(*names, self.dtype, self.shape, self.ndim)


@dataclass(slots=True)
class Catalogue:
    """The meaning of all lines so far."""

    rank: int = 0
    uid: str = ""
    created_ns: int = 0
    state: str = "open"
    published: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    series: list[SeriesEntry] = field(default_factory=list)
    variants: list[Variant] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    gaps: dict[GapKey, Gap] = field(default_factory=dict)
    edges: dict[EdgesKey, Edges] = field(default_factory=dict)
    checked: int | None = None
    stated_bytes: Counter[str] = field(default_factory=Counter)  # of lines, by their first key
    keeps_statements: bool = True

    def apply(self, lines: Iterable[bytes]) -> None:
        """Adds whole lines; raises StoreError for one that no writer of this format made."""
        for line in lines:
            try:
                self._apply(line)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise StoreError(
                    f"the catalogue of rank {self.rank} is damaged at {line[:60]!r}: {error!r}"
                ) from error

    def _apply(self, line: bytes) -> None:
        entry = json.loads(line)
        if not isinstance(entry, dict):
            raise TypeError("it is no object")
        _check_version(entry)
        self.checked = entry.get("checked", self.checked)
        sound = is_sound(line)
        if sound is False or (sound is None and self.checked is not None):
            raise ValueError("it does not fit its checksum")
        for key, read in _READERS.items():
            if key in entry:
                read(self, entry)
                self.stated_bytes[key] += len(line) + 1
                return

    def forget_statements(self) -> None:
        """Keep no gaps and no lineage from now on: a writer has no use for them."""
        self.keeps_statements = False
        self.gaps.clear()
        self.edges.clear()


def encode(entry: Mapping[str, Any]) -> bytes:
    """One line, ASCII, with its checksum and its end."""
    line = json.dumps(entry, allow_nan=False, separators=(",", ":"))
    return seal_line(line.encode()) + b"\n"


def attempt_line(attempt: Attempt) -> dict[str, Any]:
    """The line of an attempt, which is also what zarr.json says of it."""
    return {
        "attempt": attempt.number,
        "writer_id": attempt.writer_id.hex(),
        "started_ns": attempt.started_ns,
        "first_row": attempt.first_row,
        "order_base": attempt.order_base,
        "header": attempt.header,
    }


def header_line(attempt: int, entries: Mapping[str, Any]) -> dict[str, Any]:
    """The line of what an attempt's header has to say since it began; newer entries win."""
    return {"header_of": attempt, "entries": entries}


def gap_line(attempt: int, gap: Gap) -> dict[str, Any]:
    """The line of a cumulative statement; the newest of an attempt wins."""
    return {"gap": asdict(gap), "attempt": attempt}


def whole_lines(raw: bytes) -> tuple[list[bytes], int]:
    """The whole lines at the start of `raw` and where they end; the rest is not written yet."""
    end = raw.find(b"\0")
    end = raw.rfind(b"\n", 0, len(raw) if end < 0 else end) + 1
    return raw[:end].splitlines(), end


def _check_version(entry: dict[str, Any]) -> None:
    # First of all: a later format may have other checksums too.
    if "rank" in entry and entry["version"] > VERSION:
        raise StoreError(
            f"rank {entry['rank']} was written in format {entry['version']}, and this anchorlib "
            f"knows {VERSION}: a newer one can read it"
        )


def _read_rank(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    catalogue.rank = entry["rank"]
    catalogue.uid = entry["uid"]
    catalogue.created_ns = entry["created_ns"]


def _read_series(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    number, name, kind = entry["series"], entry["name"], entry["kind"]
    found = SeriesEntry(number, name, kind, entry["mode"], entry["path"])
    _put(catalogue.series, number, found)


def _read_variant(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    shape = tuple(entry["shape"]) if "shape" in entry else None
    ndim = entry["ndim"] if shape is None else len(shape)
    number = entry["variant"]
    found = Variant(number, entry["series"], entry["dtype"], shape, ndim)
    _put(catalogue.variants, number, found)


def _read_array(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    number = entry["array"]
    old = catalogue.variants[number]
    catalogue.variants[number] = Variant(
        number, old.series, old.dtype, old.shape, old.ndim, entry["name"], entry["rows"]
    )


def _read_phase(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    _put(catalogue.phases, entry["phase"], entry["name"])


def _read_gap(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    if not catalogue.keeps_statements:
        return
    gap = Gap(**entry["gap"])
    catalogue.gaps[entry["attempt"], gap.name, gap.kind, gap.mode, gap.reason] = gap


def _read_attempt(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    attempt = Attempt(
        number=entry["attempt"],
        writer_id=bytes.fromhex(entry["writer_id"]),
        started_ns=entry["started_ns"],
        header=entry["header"],
        first_row=entry["first_row"],
        order_base=entry["order_base"],
    )
    _put(catalogue.attempts, attempt.number, attempt)


def _read_header(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    number = entry["header_of"]
    old = catalogue.attempts[number]
    catalogue.attempts[number] = replace(old, header={**old.header, **entry["entries"]})


def _read_edges(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    if not catalogue.keeps_statements:
        return
    edges = read_edges(entry)
    catalogue.edges.setdefault(edges_key(edges), edges)


def _read_state(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    catalogue.state = entry["state"]


def _read_published(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    catalogue.published = entry["published"]


# In this order: an "attempt" key also stands in the lines of gaps and edges, "series" in variants'.
_READERS: Mapping[str, Callable[[Catalogue, dict[str, Any]], None]] = {
    "gap": _read_gap,
    "header_of": _read_header,
    "edges": _read_edges,
    "variant": _read_variant,
    "array": _read_array,
    "series": _read_series,
    "attempt": _read_attempt,
    "phase": _read_phase,
    "state": _read_state,
    "published": _read_published,
    "rank": _read_rank,
}


def _put(items: list[Any], number: int, item: Any) -> None:
    # Numbers are given in order: a hole means that lines are missing.
    if number != len(items):
        raise ValueError(f"{number} where {len(items)} was due")
    items.append(item)
