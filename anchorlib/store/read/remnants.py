"""A damaged rank presented as an intact one, so that readers can salvage its sound records.

    Remnants(run, 0) ─▶ RankReader(remnants, 0) ─▶ rows, of which the checksums say which are sound

No record is guessed. Catalogue lines that do not fit their checksums are left out, and their
numbers get made-up entries instead, so that other lines keep their numbers. A row's checksum is
seeded with its series and its form (dtype and shape), so a row that refers to a made-up entry does
not fit. The missing end of a column reads as zeros, and rows behind a hole in `seq`, the column
that commits rows, count as committed: checksums decide which of these rows are sound.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from anchorlib.errors import AnchorError, StoreError
from anchorlib.store.format import (
    CATALOG_CHUNK,
    COLUMNS,
    HIST_COLUMNS,
    ROWS_PER_CHUNK,
    VERSION,
    Catalogue,
    chunk_key,
    chunk_number,
    encode,
    is_sound,
    rank_name,
)
from anchorlib.store.locations import Location, Within

__all__ = ["Remnants"]

Array = np.ndarray[Any, Any]
_MOST: Final = (1 << 63) - 1
_NUMBERED: Final = ("attempt", "series", "form", "phase")
_STATED: Final = ("gap", "header_of", "edges")  # such lines may have a key of _NUMBERED as well
_NUMBERS: Final = {"series": "series", "form": "forms", "phase": "phases", "attempt": "attempts"}
_MOST_LOST: Final = 4096  # most made-up entries of a kind behind its last sound one


class Remnants:
    """A `Location` of the run at `run` that returns mended contents for one rank's damaged files.

    The rank must be of format 2.

    part: the number of the part of the rank, where several collectors share it; else 0.

    problems: the damage to the catalogue and to `seq` (the column that commits rows), in words;
        empty where both are intact.

    lost_phases: numbers of phases whose names are lost.
    """

    def __init__(self, run: Location, rank: int, part: int = 0) -> None:
        self.problems: list[str] = []
        self.lost_phases: set[int] = set()
        self._run = run
        self._rank = rank
        self._folder = rank_name(rank, part)
        self._location = Within(run, self._folder)
        self._chunks = self._chunk_count()
        self._seq = self._committed()
        self._catalogue = self._mended()

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return up to `length` bytes of a file from `start` on, mended where it is damaged.

        Bytes of the chunk files of this rank's catalogue and columns are returned even where such a
        file is missing. Other files are returned as the run has them; None where such a file is
        missing. length: None reads to the end of the file.
        """
        whole = self._replaced(key.removeprefix(f"{self._folder}/"))
        if whole is None:
            return self._run.get(key, start, length)
        return whole[start:] if length is None else whole[start : start + length]

    def list(self, prefix: str) -> list[str]:
        """Return the names in a folder of the run, sorted; names of folders end in "/".

        Listings are not mended: a chunk file that is lost is not listed, although `get` returns its
        bytes.
        """
        return self._run.list(prefix)

    def _replaced(self, key: str) -> bytes | None:
        """Return the mended bytes of a file of the catalogue or a column; None for other files."""
        folder, _, name = key.rpartition("/")
        number = chunk_number(name)
        if number is None:
            return None
        if folder == "catalog":
            return self._catalogue[number * CATALOG_CHUNK :][:CATALOG_CHUNK]
        above, _, column = folder.rpartition("/")
        if above != "records":
            return None
        if column == "seq":
            return self._seq[number * ROWS_PER_CHUNK :][:ROWS_PER_CHUNK].tobytes()
        dtype = (COLUMNS | HIST_COLUMNS).get(column)
        return None if dtype is None else self._column(column, dtype, number)

    def _column(self, name: str, dtype: np.dtype[Any], chunk: int) -> bytes:
        size = ROWS_PER_CHUNK * dtype.itemsize
        column = np.frombuffer(self._read(f"records/{name}/{chunk_key(chunk, 0)}", size), dtype)
        bound = len(getattr(self._known, _NUMBERS[name])) - 1 if name in _NUMBERS else _MOST
        # A number that no reader could follow becomes 0: its row then does not fit its checksum.
        if dtype.kind == "u" and name != "check" and not name.startswith("digest"):
            column = np.where(column.astype(np.uint64) > max(bound, 0), np.zeros(1, dtype), column)
        return column.tobytes()

    def _read(self, key: str, size: int) -> bytes:
        """Return `size` bytes of a file; bytes that are missing or unreadable become zeros."""
        try:
            data = self._location.get(key, 0, size)
        except StoreError:
            data = None
        return (data or b"").ljust(size, b"\0")

    def _chunk_count(self) -> int:
        """Return how many chunk files the fullest column has.

        No more rows can exist than these files hold.
        """
        counts = [0]
        for name in COLUMNS:
            try:
                files = self._location.list(f"records/{name}")
            except StoreError:
                continue
            counts.append(sum(chunk_number(one) is not None for one in files))
        return max(counts)

    def _committed(self) -> Array:
        """Return column `seq`, whose entries commit rows, without holes: n + 1 for each row n.

        The last committed row is the last row with an entry in `seq`, or the last row that a
        `published` line of the catalogue counts, whichever is later. The number of lost entries is
        stated in `problems`.
        """
        dtype = COLUMNS["seq"]
        key = "records/seq/"
        parts = [
            np.frombuffer(self._read(key + chunk_key(one, 0), ROWS_PER_CHUNK * 8), dtype)
            for one in range(self._chunks)
        ]
        stored = np.concatenate([np.empty(0, dtype), *parts])
        due = np.arange(1, len(stored) + 1, dtype=dtype)
        numbered = np.flatnonzero(stored == due)
        rows = int(numbered[-1]) + 1 if len(numbered) else 0
        published = self._published()
        if len(numbered) < max(rows, published):
            lost = max(rows, published) - len(numbered)
            self.problems.append(f"{lost} rows do not say any more that they are there")
        return due[: max(rows, published)]

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines of the catalogue from all its chunks, without line ends, sound or not.

        Bytes behind the last line end are a line that a crash cut, and are left out. But if they
        are a sound line, which has lost only its line end, it is yielded last, and `_has_stray`
        becomes True; else `_has_stray` becomes False.
        """
        try:
            numbers = [chunk_number(name) for name in self._location.list("catalog")]
        except StoreError:
            numbers = []
        known = sorted(one for one in numbers if one is not None)
        data = b"".join(self._read(f"catalog/{chunk_key(one, 0)}", CATALOG_CHUNK) for one in known)
        *lines, torn = data.rstrip(b"\0").split(b"\n")
        yield from lines
        # Behind the last line end a crash leaves part of a line. A line that is whole there has
        # lost nothing but its line end, by damage.
        whole = next((one for one in (torn, torn[:-1]) if is_sound(one)), None)
        self._has_stray = whole is not None
        if whole is not None:
            yield whole

    def _published(self) -> int:
        published = [entry.get("published") for _, entry in self._entries()]
        return max((one for one in published if type(one) is int and 0 < one < _MOST), default=0)

    def _entries(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        for line in self._lines():
            try:
                entry = json.loads(line) if is_sound(line) is not False else None
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, dict):
                yield line, entry

    def _mended(self) -> bytes:
        """Return the catalogue's sound lines, with made-up lines in place of lost ones.

        The damage is added to `problems` and `lost_phases`; `_known` becomes the mended catalogue.
        """
        total = sum(1 for _ in self._lines())
        numbered: dict[str, dict[int, bytes]] = {key: {} for key in _NUMBERED}
        first, others, sound = b"", [], 0
        for line, entry in self._entries():
            sound += 1
            key = next((k for k in _NUMBERED if k in entry and not entry.keys() & set(_STATED)), "")
            number = entry.get(key)
            if "rank" in entry:
                first = first or line
            elif key and type(number) is int and 0 <= number < total:
                numbered[key].setdefault(number, line)
            else:
                others.append(line)
        if not first:
            self.problems.append("the first line of the catalogue is lost")
        lost = total - sound
        scratch = self._known = Catalogue(self._rank)
        made = [self._applied(scratch, first) or self._applied(scratch, self._first())]
        for key in _NUMBERED:
            made += self._filled(scratch, key, numbered[key], lost)
        made += self._array_lines(scratch, others)
        if lost:
            self.problems.append(f"{lost} of {total} lines of the catalogue do not fit")
        if self._has_stray:
            self.problems.append("the end of the catalogue does not fit")
        return b"".join(made)

    def _first(self) -> bytes:
        about = {"rank": self._rank, "version": VERSION, "uid": "", "created_ns": 0, "checked": 0}
        return encode(about)

    def _filled(
        self, scratch: Catalogue, key: str, lines: dict[int, bytes], lost: int
    ) -> Iterator[bytes]:
        """Yield the lines of all entries of one kind in order, with made-up lines for lost ones.

        No row's checksum fits a made-up series or form. The number of each made-up phase is added
        to `lost_phases`.
        scratch: the catalogue to which each line is added, to find out whether the line is valid.
        key: the kind, such as "series". lines: the sound lines, by the number of the entry.

        lost: how many lines of the catalogue are lost in all. As many entries, 4096 at most, are
            made up behind the last sound line, because any lost line may have been of this kind.
        """
        count = max(lines, default=-1) + 1
        for number in range(count + min(lost, _MOST_LOST)):
            line = self._applied(scratch, lines.get(number, b""))
            if not line:
                if key == "phase":
                    self.lost_phases.add(number)
                line = self._applied(scratch, encode(self._unknown(key, number)))
            yield line

    def _unknown(self, key: str, number: int) -> dict[str, Any]:
        if key == "series":
            return {"series": number, "name": "lost", "kind": "value", "mode": "all"}
        if key == "form":
            return {"form": number, "dtype": "uint8", "shape": [0, 0, 0]}
        if key == "phase":
            return {"phase": number, "name": "lost"}
        return {
            "attempt": number,
            "writer_id": "",
            "started_ns": 0,
            "first_row": 0,
            "order_base": 0,
            "header": {},
        }

    def _array_lines(self, scratch: Catalogue, others: Sequence[bytes]) -> Iterator[bytes]:
        """Yield the valid lines of `others`, then a line for each form whose "array" line is lost.

        An "array" line says that a form (records of one dtype and shape) has an array of values.
        others: the sound lines that have no number of their own. scratch: the catalogue to which
        each line is added, to find out whether the line is valid.
        """
        malformed = 0
        for line in others:
            if applied := self._applied(scratch, line):
                yield applied
            else:
                malformed += 1
        if malformed:
            self.problems.append(f"malformed lines of the catalogue: {malformed}")
        for form in (*scratch.forms,):
            if form.array is None and self._has_values(form.group):
                yield self._applied(scratch, encode({"array": form.id, "rows": form.begun().rows}))

    def _has_values(self, group: str) -> bool:
        try:
            return bool(self._location.list(f"{group}/value"))
        except StoreError:
            return False

    def _applied(self, scratch: Catalogue, line: bytes) -> bytes:
        """Add `line` to the catalogue `scratch`; return it with its line end, or b"" if refused."""
        if not line:
            return b""
        try:
            scratch.apply([line.rstrip(b"\n")])
        except AnchorError:
            return b""
        return line.rstrip(b"\n") + b"\n"
