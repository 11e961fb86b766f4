"""Gives numbers to the series, phases and forms of one rank; table rows refer to these numbers.

A series, phase or form gets its number when the first record needs it. A new form gets its group on
disk first, its catalogue line second, and only then rows that refer to it; so no committed row
refers to a form that a crash has lost. A group without a catalogue line, left by a crash, is made
again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from anchorlib.block import DtypeAndShape, RowBlock, Series, Tables, layout_bytes
from anchorlib.errors import AnchorError, InvalidNameError
from anchorlib.names import MAX_NAME_BYTES, check_name, is_kind, quoted
from anchorlib.store.disk import NodeWriter, RankQuota
from anchorlib.store.format import (
    FORM_RECORDS,
    FORMS_AT_ONCE,
    Catalogue,
    SeriesEntry,
    encode,
    flat_width,
    new_form,
)
from anchorlib.store.write.forms import OpenForm
from anchorlib.store.write.open_files import ChunkFiles
from anchorlib.store.write.table import CatalogFile

__all__ = ["REFUSED", "FormResources", "Register", "check_series"]

Array = np.ndarray[Any, Any]
MAX_MODE_BYTES: Final = 256
FORM_FILES: Final = 16  # about as many as a new form makes: its group, arrays, the first chunk
LABEL_FILES: Final = 4  # that `publish` makes for a new form
UNKNOWN: Final = -1
REFUSED: Final = -2
"""Stands in place of the number of a series or phase that cannot be stored."""


@dataclass(frozen=True, slots=True)
class FormResources:
    """What a new form (a dtype and shape) needs to make its arrays.

    tree: makes zarr groups and arrays. files: keeps chunk files open. budget: counts the bytes and
        files.
    """

    tree: NodeWriter
    files: ChunkFiles
    budget: RankQuota


class Numbers:
    """Maps codes of series (or of phases) to the rank's numbers; each code is looked up once.

    All blocks of records that come from one writer share a table of series and one of phases, which
    only grow; a code is an index into such a table.
    number_of: a function that returns the rank's number of an entry of the table, or REFUSED.
    """

    def __init__(self, number_of: Callable[[Any], int]) -> None:
        self._number_of = number_of
        self._known: Array = np.empty(0, np.int64)

    def of(self, codes: Array, entries: Sequence[Any]) -> Array:
        """Return the rank's number for each code; entries without a number get one.

        codes: indices into `entries`.
        """
        if len(self._known) < len(entries):
            more = np.full(len(entries) - len(self._known), UNKNOWN)
            self._known = np.concatenate([self._known, more])
        numbers: Array = self._known[codes]
        unknown = codes[numbers == UNKNOWN]
        if not len(unknown):
            return numbers
        for code in dict.fromkeys(unknown.tolist()):
            self._known[code] = self._number_of(entries[code])
        return self._known[codes]


class Register:
    """All series, phases and forms (dtype and shape) of a rank with their numbers.

    New ones get a number and a line in the catalogue. refusals: for each series, phase, or (dtype,
    shape) that cannot be stored, the reason.
    """

    def __init__(
        self, rank: Path, catalogue: Catalogue, file: CatalogFile, resources: FormResources
    ) -> None:
        self._rank = str(rank)
        self._file = file
        self._resources = resources
        self._lines: list[bytes] = []
        self.forms: list[OpenForm] = []
        self.refusals: dict[Any, str] = {}
        self._series = {(one.name, one.kind, one.mode): one.id for one in catalogue.series}
        self._series_seeds = [one.seed for one in catalogue.series]
        self._phases = {name: number for number, name in enumerate(catalogue.phases)}
        self._own: dict[DtypeAndShape, int] = {}
        self._flat: dict[tuple[str, int], int] = {}
        self._counts: dict[DtypeAndShape, int] = {}  # records of shapes that share a flat form
        self._tables: Tables | None = None
        for entry in catalogue.forms:
            form = OpenForm(entry, self._rank, resources.files)
            if entry.array is not None:
                form.open(entry)
            self._remember(form)

    def series_and_phases(self, block: RowBlock) -> tuple[Array, Array]:
        """Return each row's series number and phase number; REFUSED where it cannot be stored.

        New series and phases get a number, and a line in the catalogue. For those that cannot be
        stored, `refusals` gets the reason.
        """
        tables = block.tables
        if tables is not self._tables:
            self._tables = tables
            self._series_of = Numbers(self._series_number)
            self._phases_of = Numbers(self._phase_number)
        series = self._series_of.of(block.columns["series"], tables.series)
        phases = self._phases_of.of(block.columns["phase"], tables.phases)
        self._append()
        return series, phases

    def sound_layouts(self, tables: Tables, codes: Array) -> Array:
        """Return a mask of the rows whose dtype and shape a tensor can have.

        For a (dtype, shape) that no tensor can have, `refusals` gets the reason.
        codes: for each row, the index of its (dtype, shape) in `tables.layouts`.
        """
        sound = np.ones(len(tables.layouts), bool)
        for code in np.flatnonzero(np.bincount(codes, minlength=len(sound))).tolist():
            layout = tables.layouts[code]
            if layout in self._own or layout in self._counts:
                continue
            try:
                layout_bytes(*layout)
            except AnchorError as error:
                self.refusals[layout] = str(error)
                sound[code] = False
        return sound[codes]

    def forms_of(self, block: RowBlock) -> Array:
        """Return the number of each row's form (dtype and shape); create missing arrays.

        Afterwards each form has an array of values if any row with values belongs to it.
        """
        codes, kept = block.columns["layout"], block.kept
        numbers = np.full(len(block.tables.layouts), UNKNOWN)
        counts = np.bincount(codes, minlength=len(numbers))
        holding = np.bincount(codes[kept], minlength=len(numbers))
        # In order of appearance: the first FORMS_AT_ONCE layouts get an array of their own.
        for code in dict.fromkeys(codes.tolist()) if counts.max() < len(codes) else codes[:1]:
            number = self._form_number(block.tables.layouts[code], int(counts[code]))
            numbers[code] = number
            if holding[code] and self.forms[number].entry.array is None:
                self._begin(self.forms[number])
        self._append()
        return numbers[codes]

    def seeds(self, series: Array, forms: Array) -> Array:
        """Return the checksum seed of each row, from its series and its form (dtype and shape).

        series, forms: the numbers of each row's series and form. For a row of a flat form (of many
            shapes), `flat_seed` must still mix the record's offset and shape into the seed.
        """
        of_form = np.array([form.entry.seed for form in self.forms], np.uint64)
        return np.array(self._series_seeds, np.uint64)[series] ^ of_form[forms]

    def _series_number(self, key: Series) -> int:
        known = self._series.get(key)
        if known is not None:
            return known
        try:
            check_series(key)
        except AnchorError as error:
            self.refusals[key] = str(error)
            return REFUSED
        number = len(self._series)
        entry = SeriesEntry(number, *key)
        line = {"series": number, "name": entry.name, "kind": entry.kind, "mode": entry.mode}
        self._lines.append(encode(line))
        self._series[key] = number
        self._series_seeds.append(entry.seed)
        return number

    def _phase_number(self, name: str) -> int:
        if name in self._phases:
            return self._phases[name]
        try:
            check_name(name)
        except AnchorError as error:
            self.refusals[name] = str(error)
            return REFUSED
        number = len(self._phases)
        self._lines.append(encode({"phase": number, "name": name}))
        self._phases[name] = number
        return number

    def _form_number(self, layout: DtypeAndShape, records: int) -> int:
        known = self._own.get(layout)
        if known is not None:
            return known
        dtype, shape = layout
        count = self._counts.get(layout, 0) + records
        if len(self._own) < FORMS_AT_ONCE or not shape or count >= FORM_RECORDS:
            self._counts.pop(layout, None)
            return self._new(dtype, shape)
        self._counts[layout] = count
        width = flat_width(len(shape))
        number = self._flat.get((dtype, width))
        return self._new(dtype, width) if number is None else number

    def _new(self, dtype: str, shape: tuple[int, ...] | int) -> int:
        form = OpenForm(new_form(len(self.forms), dtype, shape), self._rank, self._resources.files)
        entry = form.entry
        line: dict[str, object] = {"form": entry.id, "dtype": dtype}
        line |= {"width": shape} if entry.flat else {"shape": shape}
        self._lines.append(encode(line))
        self._remember(form)
        if entry.flat:
            self._begin(form)
        return entry.id

    def _begin(self, form: OpenForm) -> None:
        before = form.entry
        self._resources.budget.made_files(FORM_FILES, LABEL_FILES)
        form.open(form.entry.begun())
        try:
            form.make(self._resources.tree)
        except BaseException:
            form.entry = before
            raise
        self._lines.append(encode({"array": before.id, "rows": form.entry.rows}))

    def _remember(self, form: OpenForm) -> None:
        entry = form.entry
        if entry.shape is None:
            self._flat[entry.dtype, entry.ndim] = entry.id
        else:
            self._own[entry.dtype, entry.shape] = entry.id
        self.forms.append(form)

    def _append(self) -> None:
        if self._lines:
            self._file.append(b"".join(self._lines))
            self._lines.clear()


def check_series(key: Series) -> None:
    """Raise InvalidNameError for a (name, kind, mode) that cannot be stored."""
    name, kind, mode = key
    check_name(name)
    if not is_kind(kind) or not _fits(kind, MAX_NAME_BYTES):
        raise InvalidNameError(f"{quoted(kind)} is no kind of {quoted(name)}")
    if not _fits(mode, MAX_MODE_BYTES):
        raise InvalidNameError(
            f"the mode of {quoted(name)} is no text of at most {MAX_MODE_BYTES} bytes"
        )


def _fits(text: str, most: int) -> bool:
    """Return whether UTF-8 can encode `text`, in at most `most` bytes."""
    try:
        return len(text.encode()) <= most
    except UnicodeEncodeError:
        return False
