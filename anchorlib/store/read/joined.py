"""Reads a rank that several collectors recorded, one after the other, as a single rank.

    rank3 (records 0–549)  ─┐
    rank3.p1 (500–899)      ├▶ JoinedRank: records 0–899, as if one collector had taken them all
    rank3.p2 (none)        ─┘

A part is what one collector holds of a rank. A session is what one writer recorded of the rank, in
whichever parts it lies (`sessions`). A record that two parts hold is read from one of them
(`spans`). A joined rank has every method of `RankReader`. Its columns are put together from those
of the parts, with new numbers for series, forms, phases and attempts; values are read from the
parts. A joined rank is a snapshot: when a part has grown, the parts have to be joined anew. A form
is what records of one dtype and shape have in common; an attempt, what one writer recorded in a
part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from anchorlib.operations import Entry, entry_key
from anchorlib.record import Gap
from anchorlib.store.disk import MISFIT, REASONS
from anchorlib.store.format import Attempt, Catalogue, Form, GapKey, edges_key
from anchorlib.store.read.rank import RankReader
from anchorlib.store.read.sessions import WriterSession, has_ended, sessions_of
from anchorlib.store.stored import StoredForm, is_whole

__all__ = ["JoinedRank", "joined_rank"]

Array = np.ndarray[Any, Any]

_PAIRS: Final = 1 << 44  # times the index of a part: added to the numbers of its histogram pairs


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Rows `start` to `stop` - 1 of a joined rank, which are consecutive rows of one part.

    place: the index of the part. row: the number that row `start` has in that part.
    session: the number of the session (what one writer recorded) that these rows belong to.
    order: what is added to the part's entries in the column `order` (of execution), as each part
    counts its own.
    """

    start: int
    stop: int
    place: int
    row: int
    session: int
    order: int


class JoinedRank(RankReader):
    """The parts of one rank (a part is what one collector holds) read as one rank.

    parts: readers of the parts, which the caller has refreshed, in the order of their numbers.
    name: the run's name in errors.

    Construction raises StoreError where records are missing between parts, and where the parts are
    of two recordings that have the same name.
    """

    def __init__(self, parts: Sequence[RankReader], name: str) -> None:
        self.run = name
        self.rank = parts[0].rank
        self.part = 0
        self._parts = parts
        self.left_out = sum(part.left_out for part in parts)
        self._columns: dict[str, Array] = {}
        self._version = (sum(one.version[0] for one in parts), sum(one.version[1] for one in parts))
        self._sessions = sessions_of(parts, name)
        self._series, self._phases = _Names(), _Names()
        self._maps: dict[tuple[int, str], Array] = {}
        self._form_ends: list[int] = []
        self.catalogue = self._merged()
        self._stretches = self._laid_out()
        self.committed = self._stretches[-1].stop if self._stretches else 0

    # -- which rows lie where

    def _merged(self) -> Catalogue:
        first = self._parts[0].catalogue
        merged = Catalogue(
            self.rank,
            uid=first.uid,
            created_ns=min(part.catalogue.created_ns for part in self._parts),
            checked=first.checked,
        )
        for place, part in enumerate(self._parts):
            self._number(merged, place, part.catalogue)
        row = 0
        for session in self._sessions:
            merged.attempts.append(self._attempt(session, row))
            row += sum(span.end - span.first for span in session.spans)
            self._state(merged, session)
        merged.state = "closed" if has_ended(self._parts) else "open"
        merged.published = row
        return merged

    def _number(self, merged: Catalogue, place: int, own: Catalogue) -> None:
        """Add series, phases and forms of one part's catalogue `own` to the joined one, `merged`.

        Series, phases and forms get new numbers in `merged`. `_maps` is extended by arrays that
        hold, for the part and "series", "phase" or "form", the new number of each old one. A
        series or phase that several parts have gets one number. A form (dtype and shape) gets a
        number for each part, because each part has its own array of values.

        place: the index of the part.
        """
        numbers = [self._series.number((one.name, one.kind, one.mode)) for one in own.series]
        for old, new in zip(own.series, numbers, strict=True):
            if new == len(merged.series):
                merged.series.append(replace(old, id=new))
        phases = [self._phases.number(phase) for phase in own.phases]
        merged.phases[:] = self._phases.names
        start = len(merged.forms)
        self._maps[place, "series"] = np.array(numbers, np.uint32)
        self._maps[place, "phase"] = np.array(phases, np.uint32)
        self._maps[place, "form"] = np.arange(start, start + len(own.forms), dtype=np.uint32)
        merged.forms += [replace(form, id=start + form.id) for form in own.forms]
        self._form_ends.append(start + len(own.forms))

    def _attempt(self, session: WriterSession, row: int) -> Attempt:
        """Return one attempt in place of the attempts that a session has in the parts of the rank.

        A session is what one writer recorded, and has attempts in one or more parts. The header of
        the result has the entries of all these attempts; where several attempts have an entry of
        one name, that of the latest attempt wins.
        row: the number of the session's first record among the records of the joined rank.
        """
        own = [attempt for _, attempt in session.attempts]
        header: dict[str, Any] = {}
        for attempt in own:
            header |= attempt.header
        return replace(
            own[0], number=session.number, header=header, first_row=row, first=0, order_base=0
        )

    def _state(self, merged: Catalogue, session: WriterSession) -> None:
        """Add a session's gaps (observations not recorded) and lineage to the joined catalogue.

        A session (what one writer recorded) states the total of a gap to each collector that it
        uses, so the largest of these totals is taken. Other gaps are found by collectors, such as
        values for which a collector had no room. Each collector counts these by itself, so their
        counts are added.
        """
        number = session.number
        for place, attempt in session.attempts:
            own = self._parts[place].catalogue
            for key, gap in own.gaps.items():
                if key[0] == attempt.number:
                    _add_gap(merged.gaps, (number, *key[1:]), gap)
            for edges in own.edges.values():
                if edges.attempt == attempt.number:
                    moved = replace(edges, attempt=number)
                    merged.edges.setdefault(edges_key(moved), moved)

    def _laid_out(self) -> list[_Stretch]:
        stretches: list[_Stretch] = []
        row = order = 0
        for session in self._sessions:
            self.catalogue.attempts[session.number] = replace(
                self.catalogue.attempts[session.number], order_base=order
            )
            highest = order - 1
            for span in session.spans:
                part = self._parts[span.share.place]
                attempt = part.catalogue.attempts[span.share.attempt]
                own = attempt.first_row + span.first - attempt.first
                count, shift = span.end - span.first, order - attempt.order_base
                place = span.share.place
                stretches.append(_Stretch(row, row + count, place, own, session.number, shift))
                highest = max(highest, int(part.span("order", own, own + count).max()) + shift)
                row += count
            order = highest + 1
        return stretches

    # -- what RankReader reads from a location

    @property
    def is_current(self) -> bool:
        """Whether no part was overwritten or removed since it was opened."""
        return all(part.is_current for part in self._parts)

    @property
    def is_sealed(self) -> bool:
        """Whether every part was sealed, that is, archived in a form that never changes."""
        return all(part.is_sealed for part in self._parts)

    def refresh(self) -> None:
        """Do nothing, because a joined rank is a snapshot.

        To see later records, join the parts anew with `joined_rank`.
        """

    @property
    def version(self) -> tuple[int, int]:
        """The pair (rows, bytes of the catalogues) of all parts together, when they were joined.

        Parts that have other numbers now have grown since.
        """
        return self._version

    def span(self, name: str, start: int, stop: int) -> Array:
        """Return entries `start` to `stop` - 1 of column `name`, without caching them."""
        pieces = [
            self._piece(name, one, max(start, one.start), min(stop, one.stop))
            for one in self._stretches
            if one.start < stop and start < one.stop
        ]
        return np.concatenate(pieces) if pieces else self._parts[0].span(name, 0, 0)

    def _piece(self, name: str, stretch: _Stretch, start: int, stop: int) -> Array:
        row = stretch.row + start - stretch.start
        entries: Array = np.array(self._parts[stretch.place].span(name, row, row + stop - start))
        if name in ("series", "form", "phase"):
            return _renumbered(self._maps[stretch.place, name], entries)
        if name == "attempt":
            return np.full_like(entries, stretch.session)
        if name == "order":
            entries += stretch.order
        if name == "hist_offset":
            entries += stretch.place * _PAIRS
        return entries

    def check_rows(self, rows: Array) -> None:
        """Raise DamagedError where one of the rows numbered `rows` does not fit its checksum.

        A row that was found to fit is not checked again.
        """
        for one in self._stretches:
            own = rows[(rows >= one.start) & (rows < one.stop)]
            if len(own):
                self._parts[one.place].check_rows(own - one.start + one.row)

    def operations(self, attempt: int | None = None) -> list[Entry]:
        """Return the log of traced operations of all parts of the rank, each entry once.

        attempt: None for all entries. A number is that of an attempt of the joined rank: then the
            result has the entries of this attempt and all structures, which are entries that
            describe consecutive operations once, so that entries of any attempt may refer to them.

        Raises DamagedError where a log is damaged.
        """
        numbers = {
            (place, one.number): session.number
            for session in self._sessions
            for place, one in session.attempts
        }
        entries: dict[object, Entry] = {}
        for place, part in enumerate(self._parts):
            for entry in part.operations():
                renumbered = entry
                if "structure" not in entry:
                    number = numbers.get((place, entry["attempt"]))
                    if number is None or attempt not in (None, number):
                        continue
                    renumbered = {**entry, "attempt": number}
                entries.setdefault(entry_key(renumbered), renumbered)
        return list(entries.values())

    def _pairs(self, offsets: Array, lengths: Array) -> tuple[Array, Array]:
        places = offsets // _PAIRS
        if not len(places) or (places == places[0]).all():
            place = int(places[0]) if len(places) else 0
            return self._parts[place]._pairs(offsets - place * _PAIRS, lengths)  # noqa: SLF001
        cuts = np.flatnonzero(np.diff(places)) + 1
        pieces = zip(np.split(offsets, cuts), np.split(lengths, cuts), strict=True)
        exponents, counts = zip(*(self._pairs(*piece) for piece in pieces), strict=True)
        return np.concatenate(exponents), np.concatenate(counts)

    def _stored(self, form: Form) -> StoredForm:
        place = next(at for at, end in enumerate(self._form_ends) if form.id < end)
        first = int(self._maps[place, "form"][0])
        return self._parts[place]._stored(replace(form, id=form.id - first))  # noqa: SLF001


class _Names:
    """Numbers names consecutively, in the order in which they first occur."""

    def __init__(self) -> None:
        self.names: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, name: Any) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]


def _renumbered(numbers: Array, values: Array) -> Array:
    """Return `values` with each value v replaced by numbers[v].

    A value that is no index of `numbers` is damage. It becomes the largest number of its dtype, so
    that readers find it out of range.
    """
    known = values < len(numbers)
    renumbered = np.full_like(values, np.iinfo(values.dtype).max)
    renumbered[known] = numbers[values[known]]
    return renumbered


def _add_gap(gaps: dict[GapKey, Gap], key: GapKey, gap: Gap) -> None:
    old = gaps.get(key)
    if old is None:
        gaps[key] = gap
        return
    own = gap.reason in REASONS or gap.reason.startswith(MISFIT)
    gaps[key] = replace(
        gap,
        count=old.count + gap.count if own else max(old.count, gap.count),
        first_step=min(old.first_step, gap.first_step),
        last_step=max(old.last_step, gap.last_step),
    )


def joined_rank(parts: Sequence[RankReader], name: str) -> RankReader:
    """Return one reader of the rank that has these parts, in the order of their numbers.

    A part is what one collector holds of the rank. If there is a single part with all records, its
    reader is returned as it is. Raises StoreError where records are missing between parts, or where
    the parts are of two recordings that have the same name.

    parts: readers of the parts. name: the run's name in errors.
    """
    return parts[0] if is_whole(parts) else JoinedRank(parts, name)
