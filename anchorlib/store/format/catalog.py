"""The catalogue of one rank, put together from its lines: what the numbers in its table mean.

`catalog_lines` says what the lines are. A line that no writer of this format made is damage.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, cast, get_args

import numpy as np

from anchorlib.claims import stored_claim
from anchorlib.errors import DamagedError, StoreError
from anchorlib.record import Edges, Gap
from anchorlib.store.format.catalog_lines import Attempt, SeriesEntry, read_gap
from anchorlib.store.format.checks import is_sound
from anchorlib.store.format.edges import EdgesKey, edges_key, read_edges
from anchorlib.store.format.fields import check_depth, mapping, text, whole
from anchorlib.store.format.form import MOST_DIMS, Form, new_form, shape_of
from anchorlib.store.format.format1 import Format1
from anchorlib.store.format.layout import VERSION, is_safe_key
from anchorlib.store.format.parts import Begins

__all__ = ["Catalogue", "GapKey"]

Array = np.ndarray[Any, Any]
GapKey = tuple[int, str, str, str, str]  # attempt, name, kind, mode, reason

_MOST: Final = (1 << 63) - 1
_SHARED: Final = 1 << 9  # lines up to this long are remembered, for ranks with the same line
_SERIES_KEYS: Final = {"series", "name", "kind", "mode", "check"}
_WORD: Final = re.compile(r"[a-z0-9_]{1,64}")
_ARRAY: Final = re.compile(r"[a-z]+(_[0-9]+)?")


@dataclass(slots=True)
class Catalogue:
    """The content of all catalogue lines of one rank that were read so far.

    state: "open", or "closed" once the session was closed.
    attempts, series, forms, phases: by number; the table refers to these numbers. A form is what
    records of one dtype and shape have in common.
    gaps: counts of observations that were not recorded. edges: lineage (what each value was
    computed from).
    published: how many rows zarr readers other than anchorlib's see, with labels beside the values.
    checked: the first row with a checksum; None where no row has one.
    stated_bytes: bytes of the lines so far, by the key that says what a line is, such as "series".
    keeps_statements: whether gaps and edges are kept in memory.
    older: the fields that only catalogues of format 1 have, see `format1`.
    """

    rank: int = 0
    uid: str = ""
    created_ns: int = 0
    state: str = "open"
    published: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    series: list[SeriesEntry] = field(default_factory=list)
    forms: list[Form] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    gaps: dict[GapKey, Gap] = field(default_factory=dict)
    edges: dict[EdgesKey, Edges] = field(default_factory=dict)
    checked: int | None = None
    version: int = VERSION
    older: Format1 = field(default_factory=Format1)
    stated_bytes: Counter[str] = field(default_factory=Counter)  # bytes of lines, by first key
    keeps_statements: bool = True

    def apply(self, lines: Iterable[bytes]) -> None:
        """Add further complete lines of the rank's catalogue, each without its line end.

        Raises DamagedError for a line that no writer of this format made, StoreError where a newer
        anchorlib wrote the catalogue.
        """
        for line in lines:
            try:
                self._apply(line)
            # json recurses: a line nested a thousand deep ends in RecursionError.
            except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
                raise DamagedError(
                    f"the catalogue of rank {self.rank} is damaged at {line[:60]!r}: {error!r}"
                ) from error

    def _apply(self, line: bytes) -> None:
        if self.version > 1 and line.startswith(b'{"series":') and len(line) <= _SHARED:
            series = _series_of(line, self.checked is not None)
            if series is not None:
                _put(self.series, series.id, series)
                self.stated_bytes["series"] += len(line) + 1
                return
        entry = json.loads(line)
        check_depth(mapping(entry))
        _check_version(entry)
        if "checked" in entry:
            self.checked = whole(entry["checked"], most=_MOST)
        sound = is_sound(line)
        if sound is False or (sound is None and self.checked is not None):
            raise ValueError("it does not fit its checksum")
        for key, read in _READERS.items():
            if key in entry:
                read(self, entry)
                self.stated_bytes[key] += len(line) + 1
                return

    def owners(self, table: Any) -> tuple[Array, Array]:
        """Return two arrays: the number of each row's form (dtype and shape), and of each's series.

        table: a structured array of table rows, or a mapping from column names to arrays.
        """
        if self.version > 1:
            return table["form"], table["series"]
        forms = table["variant"]
        series = np.array(self.older.owners, np.uint32)
        return forms, series[np.minimum(forms, max(len(series) - 1, 0))] if len(series) else forms

    def seed(self, series: int, form: int) -> int:
        """Return the checksum seed of rows of one series and form (dtype and shape), by number.

        For a row of a flat form (of many shapes), `flat_seed` must still mix the record's offset
        and shape into this seed.
        """
        if self.version == 1:
            one = self.series[series]
            return self.older.identity(self.forms[form], (one.name, one.kind, one.mode))
        return self.series[series].seed ^ self.forms[form].seed

    def forget_statements(self) -> None:
        """Drop gaps (observations not recorded) and lineage (what values were computed from).

        Gaps and lineage in later lines are ignored too. Writers call this: they need neither.
        """
        self.keeps_statements = False
        self.gaps.clear()
        self.edges.clear()


@lru_cache(maxsize=1 << 14)
def _series_of(line: bytes, checked: bool) -> SeriesEntry | None:  # noqa: FBT001
    """Parse a catalogue line of a series; return None for a line with unexpected keys.

    After None the caller has to parse the line in the slower way that all other lines take. The
    ranks of a job have equal series lines, and results are cached, so each different line is parsed
    once.

    checked: whether the lines of this catalogue have checksums. Raises ValueError where the line
        does not fit its checksum, or has no checksum although `checked` is True.
    """
    entry = mapping(json.loads(line))
    if not is_sound(line) and (checked or is_sound(line) is False):
        raise ValueError("it does not fit its checksum")
    return _series_entry(entry) if entry.keys() <= _SERIES_KEYS else None


def _series_entry(entry: Mapping[str, Any]) -> SeriesEntry:
    name, kind, mode = (text(entry[key]) for key in ("name", "kind", "mode"))
    return SeriesEntry(whole(entry["series"]), name, kind, mode)


def _check_version(entry: dict[str, Any]) -> None:
    # Checked before the checksum: a later format may have other checksums too.
    if "rank" in entry and whole(entry["version"]) > VERSION:
        raise StoreError(
            f"rank {whole(entry['rank'])} was written in format {entry['version']}, and this "
            f"anchorlib knows formats up to {VERSION}: read it with a newer anchorlib"
        )


def _read_rank(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    catalogue.rank = whole(entry["rank"])
    catalogue.version = whole(entry["version"], 1)
    catalogue.uid = text(entry["uid"])
    catalogue.created_ns = whole(entry["created_ns"], most=_MOST)


def _read_series(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    series = _series_entry(entry)
    if catalogue.version == 1:
        path = text(entry["path"])
        if not is_safe_key(path):
            raise ValueError("its path leads out of the run")
        catalogue.older.paths.append(path)
    _put(catalogue.series, series.id, series)


def _read_variant(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    if catalogue.version == 1:
        form = catalogue.older.variant(entry)
        _put(catalogue.forms, form.id, form)


def _read_form(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    stated = entry["shape"] if "shape" in entry else entry["width"]
    shape = shape_of(stated) if "shape" in entry else whole(stated, 1, MOST_DIMS)
    dtype = text(entry["dtype"])
    if not _WORD.fullmatch(dtype):
        raise ValueError("no dtype has such a name")
    form = new_form(whole(entry["form"]), dtype, shape)
    _put(catalogue.forms, form.id, form)


def _read_array(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    number = whole(entry["array"], most=len(catalogue.forms) - 1)
    name = text(entry["name"]) if catalogue.version == 1 else "value"
    if not _ARRAY.fullmatch(name):
        raise ValueError("no array has such a name")
    rows = whole(entry["rows"], 1, _MOST)
    catalogue.forms[number] = replace(catalogue.forms[number], array=name, rows=rows)


def _read_phase(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    _put(catalogue.phases, whole(entry["phase"]), text(entry["name"]))


def _read_gap(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    if not catalogue.keeps_statements:
        return
    gap = read_gap(mapping(entry["gap"]))
    catalogue.gaps[whole(entry["attempt"]), gap.name, gap.kind, gap.mode, gap.reason] = gap


def _read_attempt(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    part = mapping(entry["part"]) if "part" in entry else {}
    begins = text(part.get("begins", ""))
    if begins not in get_args(Begins):
        raise ValueError("no attempt begins so")
    restart = part.get("restart")
    attempt = Attempt(
        number=whole(entry["attempt"]),
        claim=stored_claim(bytes.fromhex(text(entry["writer_id"]))),
        started_ns=whole(entry["started_ns"], most=_MOST),
        header=mapping(entry["header"]),
        first_row=whole(entry["first_row"], most=_MOST),
        order_base=whole(entry["order_base"], most=_MOST),
        first=whole(part.get("first", 0), most=_MOST),
        begins=cast(Begins, begins),
        restart=None if restart is None else whole(restart),
    )
    _put(catalogue.attempts, attempt.number, attempt)


def _read_header(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    number = whole(entry["header_of"], most=len(catalogue.attempts) - 1)
    old = catalogue.attempts[number]
    header = {**old.header, **mapping(entry["entries"])}
    catalogue.attempts[number] = replace(old, header=header)


def _read_edges(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    if not catalogue.keeps_statements:
        return
    edges = read_edges(entry)
    catalogue.edges.setdefault(edges_key(edges), edges)


def _read_state(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    catalogue.state = text(entry["state"])


def _read_published(catalogue: Catalogue, entry: dict[str, Any]) -> None:
    catalogue.published = whole(entry["published"], most=_MOST)


# The first key that a line has decides. The order matters: lines of gaps and edges have an
# "attempt" key too, and lines of variants have "series".
_READERS: Mapping[str, Callable[[Catalogue, dict[str, Any]], None]] = {
    "gap": _read_gap,
    "header_of": _read_header,
    "edges": _read_edges,
    "variant": _read_variant,
    "form": _read_form,
    "array": _read_array,
    "series": _read_series,
    "attempt": _read_attempt,
    "phase": _read_phase,
    "state": _read_state,
    "published": _read_published,
    "rank": _read_rank,
}


def _put(items: list[Any], number: int, item: Any) -> None:
    # Numbers are given in order, so a number that is skipped means that lines are missing.
    if number != len(items):
        raise ValueError(f"{number} where {len(items)} was due")
    items.append(item)
