"""Gives each rank of a run to one stream at a time, with the store's writer for that rank.

A stream is one Push call; while it holds a rank, no other stream can write to that rank.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hmac import compare_digest
from pathlib import Path
from typing import Any, TypeAlias

from anchor_server.authors import check_author, check_runs
from anchor_server.limits import Limits
from anchor_server.new_runs import RunCreation
from anchor_server.refusal_counts import Caller
from anchor_server.refusals import Refusal
from anchor_server.tokens import Grant
from anchorlib.claims import SECRET_BYTES, claim_of
from anchorlib.errors import AnchorError, OptionError, RunBusyError
from anchorlib.names import check_run_name, escape
from anchorlib.store import Part, RunQuota, Writer, run_directory
from anchorlib.wire import HEADER_BYTES, FailureKind, Hello

__all__ = ["RankHolders", "RankLease"]

_log = logging.getLogger("anchor_server")

_UNPUBLISHED = 4096  # ranks whose failed publication is remembered, at most
_MOST_PARTS = 10_000  # collectors that a rank may be spread over
_Key: TypeAlias = tuple[str, int, int]  # run, rank, and the number of the rank's part


@dataclass(frozen=True, slots=True)
class _Claim:
    """The stream (Push call) that holds a rank now.

    writer_id: the secret by which the trainer's writer is told from other writers.
    owner: the trainer in words, for errors.
    end: called with a Refusal; makes the stream end with this refusal and give the rank back.
    """

    writer_id: bytes
    owner: str
    end: Callable[[Refusal], None]


class RankLease:
    """A rank that one stream (Push call) holds.

    writer: what writes into the rank, and holds its lock. closed: whether `close` was called.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.closed = False

    @property
    def committed(self) -> int:
        """How many records of this client are stored.

        Records that are stored at a collector that the client used before count too.
        """
        return self.writer.committed

    def close(self) -> None:
        """Marks the rank in the store as closed, as its trainer has asked, and unlocks it."""
        self.closed = True
        self.writer.close()

    def leave(self) -> AnchorError | None:
        """Unlocks the rank, which stays marked open; does nothing after `close`.

        First publishes the rank, that is, updates the zarr metadata, so that plain zarr readers see
        all records. Returns the error where publishing failed, else None. The records are stored in
        any case.
        """
        if self.closed:
            return None
        try:
            self.writer.publish()
        except AnchorError as error:
            return error
        finally:
            self.writer.abandon()
        return None


class RankHolders:
    """Gives ranks of the runs in `store` to streams (Push calls): each rank to one at a time.

    fsync: whether each batch of records survives power loss before it is acknowledged.
    max_bytes: most bytes of one rank on disk; a client may ask for less. None is no limit.
    limits: the collector's limits for runs; the limits of the writing token apply too.
    patience: how many seconds a new stream waits for an older stream to give the rank back.
    """

    def __init__(
        self,
        store: Path,
        *,
        fsync: bool,
        max_bytes: int | None,
        limits: Limits,
        patience: float,
    ) -> None:
        self._store = store
        self._fsync = fsync
        self._max_bytes = max_bytes
        self._limits = limits
        self._rooms: dict[str, RunQuota] = {}
        self._patience = patience
        self._changed = threading.Condition()
        self._creation = RunCreation(store)
        self._claims: dict[_Key, _Claim] = {}
        self._unpublished: set[_Key] = set()

    @contextmanager
    def hold(
        self, hello: Hello, caller: Caller, grant: Grant, end: Callable[[Refusal], None]
    ) -> Iterator[RankLease]:
        """A context in which a stream holds the rank that its Hello names.

        On entry, an older stream of the same writer is made to end, and the older stream that holds
        the rank, of whatever writer, is waited for. When the context ends, a rank that was not
        closed stays open in the store: its writer may come back, or another writer may resume it.

        Raises RunBusyError where another stream still holds the rank after `patience` seconds;
        RunExistsError where the rank exists and cannot be continued as Hello asks;
        InvalidNameError or OptionError for a Hello with invalid values; StoreError where the store
        is damaged or cannot be written; a Refusal where `grant` may not write to the run, or where
        there are too many runs.

        hello: the stream's first message. caller: who sends that, for the log.
        grant: the rights of the caller.
        end: ends this stream with a Refusal; called when a later stream of the writer comes.
        """
        owner = escape(hello.writer[:200]) or caller.peer
        header = _header(hello)
        key = (check_run_name(hello.run), hello.rank, hello.part.number)
        self.check_author(grant, hello)
        self._take(key, _Claim(hello.writer_id, f"{owner} ({caller.peer})", end))
        try:
            held = RankLease(self._admit(hello, header, grant))
            said = {**caller.log_fields, "writer": claim_of(hello.writer_id).hex()[:32]}
            self._log_begin(held.writer, said)
            try:
                yield held
            finally:
                self._log_unpublished(key, held.leave())
                how = "rank closed" if held.closed else "stream over, rank left open"
                _log.info(how, extra={**said, "seq": held.committed})
        finally:
            with self._changed:
                del self._claims[key]
                if not any(run == hello.run for run, *_ in self._claims):
                    self._rooms.pop(hello.run, None)
                self._changed.notify_all()

    def _log_begin(self, writer: Writer, said: dict[str, object]) -> None:
        if writer.replaced:
            _log.info("rank replaced: what it held before is removed", extra=said)
        _log.info("stream begins", extra={**said, "seq": writer.committed})

    def _log_unpublished(self, key: _Key, error: AnchorError | None) -> None:
        """Logs that a rank could not be published, because of `error`; None logs nothing.

        The rank's records are committed in any case: only plain zarr readers, which do not know
        anchorlib's table of records, see fewer of them. The first failure of a rank is logged as a
        warning, further ones in a row as INFO.
        """
        if error is None:
            self._unpublished.discard(key)
            return
        # A disk that stays full ends stream after stream: only the first one is worth a warning.
        level = logging.INFO if key in self._unpublished else logging.WARNING
        if len(self._unpublished) < _UNPUBLISHED:
            self._unpublished.add(key)
        _log.log(level, "not published: %s", error, extra={"run": key[0], "rank": key[1]})

    def check_author(self, grant: Grant, hello: Hello) -> None:
        """Raises a Refusal where `grant` may not write to the run that `hello` names.

        Who made the run decides: an example is a run that another token made, while `grant` has no
        right to replace runs (`authors.check_author` has all cases). Raises StoreError where the
        note of who made the run is damaged or missing.
        """
        check_author(self._store, grant, hello.run, anew=hello.overwrite)

    def wait_idle(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds until no stream (Push call) holds a rank.

        Returns whether none does.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._claims, timeout)

    def _take(self, key: _Key, claim: _Claim) -> None:
        with self._changed:
            held = self._claims.get(key)
            if held is not None and compare_digest(held.writer_id, claim.writer_id):
                held.end(Refusal(FailureKind.REPLACED, "another stream of this writer took over"))
            # Waits for a stream of another writer too: that writer may have been killed a moment
            # ago, and its stream is about to end.
            if not self._changed.wait_for(lambda: key not in self._claims, self._patience):
                run, rank, _ = key
                raise RunBusyError(
                    f"rank {rank} of run {run!r} is being written by {self._claims[key].owner}; "
                    "stop it, or take another run name or rank"
                )
            self._claims[key] = claim

    def _admit(self, hello: Hello, header: dict[str, Any], grant: Grant) -> Writer:
        def check(making: Mapping[str, str]) -> None:
            self.check_author(grant, hello)
            check_runs(self._store, hello.run, self._limits, grant, making)

        with self._creation.of(hello.run, grant.name, check):
            return self._open(hello, header, grant)

    def _open(self, hello: Hello, header: dict[str, Any], grant: Grant) -> Writer:
        limits = [limit for limit in (self._max_bytes, hello.max_bytes) if limit]
        room = self._room_of(hello.run, grant.limits)
        writer = Writer.open(
            self._store,
            hello.run,
            hello.rank,
            resume=hello.resume,
            overwrite=hello.overwrite,
            header=header,
            writer_id=hello.writer_id,
            fsync=self._fsync,
            max_bytes=min(limits, default=None),
            # A trainer keeps records in its spool until they are acknowledged, and sends them
            # again until the disk has room.
            wait_for_room=True,
            acknowledged=hello.acknowledged,
            run_room=room,
            author=grant.name,
            part=_part(hello),
        )
        if room is not None and hello.overwrite:  # opening removed files that `room` had counted
            room.measure()
        return writer

    def _room_of(self, run: str, limits: Limits) -> RunQuota | None:
        """Returns the disk budget that all open ranks of a run share; None for a run without limit.

        Of each limit of the token and the same limit of the collector, the stricter one applies.

        limits: the limits of the token that writes the run.
        """
        nbytes = _least(self._limits.run_bytes, limits.run_bytes)
        files = _least(self._limits.run_files, limits.run_files)
        if nbytes is None and files is None:
            return None
        with self._changed:
            known = self._rooms.get(run)
            room = self._rooms[run] = known or RunQuota(run_directory(self._store, run))
        room.bound(nbytes, files)
        if known is None:
            room.measure()
        return room


def _part(hello: Hello) -> Part | None:
    """Returns which part of the rank this collector stores; None where it stores the whole rank.

    A rank has several parts, one at each collector, where its trainer went on at another collector.
    Raises OptionError for a part whose number, or whose first record's number, is too large.
    """
    if not hello.HasField("part"):
        return None
    part = hello.part
    if part.number >= _MOST_PARTS or part.first >= 1 << 63:
        raise OptionError(f"no rank has a part {part.number} from record {part.first} on")
    return Part(part.number, part.first, part.restart if part.HasField("restart") else None)


def _least(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)


def _header(hello: Hello) -> dict[str, Any]:
    if len(hello.writer_id) != SECRET_BYTES:
        raise OptionError(f"a writer's id has {SECRET_BYTES} bytes, not {len(hello.writer_id)}")
    if len(hello.header) > HEADER_BYTES:
        raise OptionError(
            f"a run header has at most {HEADER_BYTES} characters, not {len(hello.header)}"
        )
    try:
        header = json.loads(hello.header or "{}")
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise OptionError("the run header is no JSON object")
    return header
