"""Delivers a spool into a directory, with the store's own writer."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from anchorlib.errors import RunExistsError, StoreError
from anchorlib.names import escape
from anchorlib.progress import Progress
from anchorlib.spool.dead_spool import DeliveryResult, SpoolContent
from anchorlib.spool.destination import Destination
from anchorlib.spool.spools import OwnedSpool
from anchorlib.spool.stored_attempts import past_attempts
from anchorlib.store import Writer
from anchorlib.wire import (
    OTHER_RECORDS,
    Decoder,
    EncodedFrame,
    FrameError,
    Hello,
    ParsedFrame,
    StoredRange,
    kept_definition,
    kept_frame,
    parse_request,
    read_header,
    read_lineage,
    read_operations,
    unconfirmed_ranges,
)

__all__ = ["to_directory"]


def to_directory(work: OwnedSpool, target: Destination, progress: Progress) -> DeliveryResult:
    """Write a spool's records into a directory's store, then remove the spool.

    Returns the counts of the delivery. Records that the store has already are not written again.
    work: the spool, which this process has locked. target: the directory, and the run's name there.
    progress: called after each message with (number of records that are stored, number in all).

    Raises RunExistsError if the store has other records of this rank, RunBusyError if a live
    process is writing the rank, StoreError if the spool or the store cannot be used.
    """
    store = Path(target.to)
    content = SpoolContent(work, target, threading.Condition())
    hello = content.hello(past_attempts(content.run, content.rank, target.to))
    writer = Writer.open(
        store,
        hello.run,
        hello.rank,
        resume=hello.resume,
        overwrite=hello.overwrite,
        header=_header(hello),
        writer_id=hello.writer_id,
        max_bytes=hello.max_bytes or None,
        acknowledged=hello.acknowledged,
    )
    try:
        _confirm(content, writer, store)
        _write(content, writer, progress)
        writer.gap([*content.notes.gaps, *content.damage()])
        for message in content.notes.lineage:
            request = parse_request(message)
            if not isinstance(request, ParsedFrame):
                writer.edges(read_lineage(request.lineage))
                writer.header(read_header(request.lineage))
                writer.operations(read_operations(request.lineage))
        if content.notes.closed:
            writer.close()
        else:
            writer.publish()
    finally:
        writer.abandon()
    if work.label is None or work.label.power:
        os.sync()  # the spool is removed now, so its records must not be in memory alone
    return content.finish()


def _confirm(content: SpoolContent, writer: Writer, store: Path) -> None:
    """Raise RunExistsError if records that the store has of this writer differ from the spool's.

    Without this check the spool would be removed as delivered, and its records be lost. Raises
    StoreError if another attempt (recording of the rank) was begun since the spool was opened.

    writer: the store's writer of the rank, which has opened the attempt of this delivery.
    """
    if content.attempt not in (None, writer.attempt):
        raise StoreError(
            f"rank {content.rank} of run {content.run!r} in {escape(str(store))} was changed while "
            "the spool was opened: try once more"
        )
    links = (*content.links, StoredRange(writer.attempt, 0, writer.committed))
    start = min(link.first for link in links)
    for held in unconfirmed_ranges(content.frames.held(start), links):
        if writer.fingerprint(held.attempt, held.first, held.end) != held.fingerprint:
            where = f"rank {content.rank} of run {content.run!r} in {escape(str(store))}"
            raise RunExistsError(f"{where}: {OTHER_RECORDS.format(records=held)}")


def _write(content: SpoolContent, writer: Writer, progress: Progress) -> None:
    frames, decoder = content.frames, Decoder()
    frames.rewind()
    frames.commit(writer.committed)
    frames.tidy()
    defined = 0
    next_record = writer.committed
    while (frame := frames.first()) is not None:
        while defined < frame.definitions:
            decoder.define(kept_definition(frames.definitions[defined]))
            defined += 1
        next_record = _write_frame(frame, next_record, decoder, writer)
        frames.advance()
        progress(writer.committed, max(frames.end, writer.committed))


def _write_frame(frame: EncodedFrame, due: int, decoder: Decoder, writer: Writer) -> int:
    framed = kept_frame(frame.message)
    block = decoder.block(framed)
    if block is None:  # further fragments of the record follow
        return due
    first = framed.head.first
    writer.write_block(block.after(due - first))
    return max(due, first + len(block))


def _header(hello: Hello) -> dict[str, object]:
    try:
        header = json.loads(hello.header or "{}")
    except (ValueError, RecursionError):
        raise FrameError("the run header in the spool is no JSON object") from None
    return dict(header) if isinstance(header, dict) else {}
