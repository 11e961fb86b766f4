"""Imports a folder of tensor files into a run: reads, names and records each of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anchor_cli.imports.dumps import SUFFIXES, Dump, read
from anchor_cli.imports.placing import DumpCoordinates, Placing, natural
from anchor_cli.terminal import counted, note, steps_of
from anchorlib.block import block_of
from anchorlib.errors import InvalidNameError, OptionError, UnsupportedError
from anchorlib.names import check_name, escape, join
from anchorlib.progress import Progress
from anchorlib.record import Coordinates, Record
from anchorlib.store import Writer
from anchorlib.summary import summarise

__all__ = ["Import"]


@dataclass
class Import:
    """The import of the folder `root` into the run `run` of the directory `store`, with its counts.

    overwrite: whether to replace a run of that name.
    skipped: why a file gave no record, keyed by the file's path in the folder.
    tensors: the (name, kind) of each recorded tensor. steps: the steps that have a record.
    files, records, bytes: how many files were recorded, with how many records and bytes of values.
    left_out: how many records were stored without values, for which the disk had no room.
    """

    root: Path
    store: Path
    run: str
    overwrite: bool
    skipped: dict[str, str] = field(default_factory=dict)
    tensors: set[tuple[str, str]] = field(default_factory=set)
    steps: set[int] = field(default_factory=set)
    files: int = 0
    records: int = 0
    bytes: int = 0
    left_out: int = 0
    _writers: dict[int, Writer] = field(default_factory=dict)
    _orders: dict[int, int] = field(default_factory=dict)
    _calls: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def all(self, placing: Placing, tick: Progress) -> None:
        """Imports all files below the folder that hold tensors, and closes the run.

        Files that cannot be imported are added to `skipped` and named on stderr. If an error is
        raised, such as for a full disk, the run is left open.

        placing: finds the step, pass, rank, name and kind of a file by its path.
        tick: called with the number of files done so far, and their total.
        """
        dumps = self._placed(placing)
        try:
            for number, (file, at) in enumerate(dumps):
                tick(number, len(dumps))
                self._one(file, at)
            for writer in self._writers.values():
                self.left_out += writer.left_out.records
                writer.close()
        finally:
            for writer in self._writers.values():
                writer.abandon()

    @property
    def ranks(self) -> set[int]:
        """The ranks that records were written to."""
        return set(self._writers)

    def document(self) -> dict[str, Any]:
        """Returns the result as a dict for `anchor import --json`.

        Raises ValueError where no record was imported.
        """
        return {
            "run": self.run,
            "store": str(self.store),
            "files": self.files,
            "tensors": len(self.tensors),
            "records": self.records,
            "bytes": self.bytes,
            "first_step": min(self.steps),
            "last_step": max(self.steps),
            "skipped": [{"file": file, "why": why} for file, why in self.skipped.items()],
        }

    def sentence(self) -> str:
        """Returns a sentence that says what was imported.

        Raises ValueError where no record was imported.
        """
        return (
            f"{self.run}: {counted(self.records, 'record')} of "
            f"{counted(len(self.tensors), 'tensor')}, {steps_of(min(self.steps), max(self.steps))},"
            f" from {counted(self.files, 'file')}, in {escape(str(self.store))}"
        )

    def _placed(self, placing: Placing) -> list[tuple[Path, DumpCoordinates]]:
        """Returns the files to import and their coordinates, in the order of recording.

        The coordinates are step, pass, rank, name and kind, as the file's path says them. The order
        is by step and pass, values before gradients, then by path. Files whose suffix or path does
        not fit are added to `skipped` and named on stderr.
        """
        dumps = [
            (file, at) for file in _files(self.root) if (at := self._coordinates(file, placing))
        ]
        dumps.sort(
            key=lambda one: (
                (one[1].step, one[1].pass_index, one[1].of(()).kind != "value"),
                natural(one[0].relative_to(self.root).as_posix()),
            )
        )
        return dumps

    def _coordinates(self, file: Path, placing: Placing) -> DumpCoordinates | None:
        if file.suffix.lower() not in SUFFIXES:
            self._skip(file, f"is none of {' '.join(SUFFIXES)}")
            return None
        try:
            at = placing.of_path(file.relative_to(self.root).with_suffix("").as_posix())
        except OptionError as error:
            self._skip(file, str(error))
            return None
        if at is None:
            self._skip(file, "does not match --step-pattern")
        return at

    def _skip(self, file: Path, why: str) -> None:
        name = str(file.relative_to(self.root))
        self.skipped[name] = why
        note(f"skipped {escape(name)}: {why}")

    def _one(self, file: Path, at: DumpCoordinates) -> None:
        try:
            time_ns = file.stat().st_mtime_ns
            dumps, others = read(file)
            # Values before gradients, where a file has both.
            placed = sorted(
                ((at.of(dump.keys), dump) for dump in dumps),
                key=lambda one: one[0].kind != "value",
            )
            for coordinates, _ in placed:
                check_name(coordinates.name)
        except (InvalidNameError, UnsupportedError) as error:
            self._skip(file, str(error))
            return
        except OSError as error:
            self._skip(file, f"cannot be read: {error.strerror}")
            return
        if others:
            names = ", ".join(map(escape, others[:5])) + (", ..." if len(others) > 5 else "")
            what = escape(str(file.relative_to(self.root)))
            note(f"{what}: {counted(len(others), 'value')} left out, no tensors: {names}")
        self._write(placed, time_ns)
        self.files += 1

    def _write(self, placed: Sequence[tuple[DumpCoordinates, Dump]], time_ns: int) -> None:
        records = [self._record(at, dump, time_ns) for at, dump in placed]
        # All tensors of a file belong to one rank, so that one block holds them.
        block = block_of(records)
        self._writer(records[0].rank).write_block(block)
        for one in block.misfits:
            note(f"{escape(join(one.name, one.kind))} at step {one.step} left out: {one.reason}")
        self.records += len(block)
        self.bytes += sum(record.nbytes for record in records)
        self.steps |= {record.step for record in records}
        self.tensors |= {(record.name, record.kind) for record in records}

    def _record(self, at: DumpCoordinates, dump: Dump, time_ns: int) -> Record:
        call = self._calls.get(key := (at.rank, at.step, at.pass_index, at.name, at.kind), 0)
        order = self._orders.get(at.rank, 0)
        self._calls[key], self._orders[at.rank] = call + 1, order + 1
        return Record(
            name=at.name,
            kind=at.kind,
            mode="all",
            coordinates=Coordinates(at.step, at.pass_index, call),
            order=order,
            time_ns=time_ns,
            dtype=dump.dtype,
            shape=dump.raw.shape,
            raw=dump.raw,
            summary=summarise(dump.raw, dump.dtype),
            rank=at.rank,
        )

    def _writer(self, rank: int) -> Writer:
        if rank not in self._writers:
            self._writers[rank] = Writer.open(
                self.store,
                self.run,
                rank,
                overwrite=self.overwrite,
                header={"imported.from": str(self.root.resolve())},
            )
        return self._writers[rank]


def _files(root: Path) -> Iterator[Path]:
    """Yields all files below `root` except hidden files and files in hidden folders.

    Links to folders are not followed.
    """
    for folder, folders, files in os.walk(root):
        folders[:] = [one for one in folders if not one.startswith(".")]
        yield from (Path(folder, one) for one in sorted(files) if not one.startswith("."))
