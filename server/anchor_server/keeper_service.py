"""The Keeper service of gRPC: says which ranks are being written; measures, removes, renames runs.

A run that is being written is never removed or renamed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message

from anchor_server.authors import linked_run
from anchor_server.counters import ArchiveTally, CollectorCounters
from anchor_server.gate import Gate
from anchor_server.refusal_counts import Caller, RefusalCounts
from anchor_server.refusals import Refusal
from anchor_server.stream_registry import StreamState
from anchor_server.tokens import Grant, Right
from anchorlib.errors import OptionError, RunNotFoundError, StoreError
from anchorlib.names import check_run_name, check_stored_run_name
from anchorlib.store import (
    disk_bytes,
    forget_run,
    has_run,
    is_written,
    note_of,
    noted_runs,
    remove_run,
    rename_run,
    run_directory,
)
from anchorlib.wire import (
    ArchivingTold,
    Failing,
    FailureKind,
    FrameError,
    GarbledError,
    MeasureReply,
    MeasureRequest,
    RemoveReply,
    RemoveRequest,
    RenameReply,
    RenameRequest,
    StatusReply,
    StatusRequest,
    Writing,
    check_of,
    check_seal,
    keeper_handler,
    sealed,
)

__all__ = ["KeeperService"]

_log = logging.getLogger("anchor_server")


@dataclass(frozen=True, slots=True)
class KeeperCall:
    """A call of the Keeper service that is being answered.

    context: gRPC's object for the call, which shows the caller's token.
    caller: who calls, for the log.
    """

    context: grpc.ServicerContext
    caller: Caller


Answer: TypeAlias = Callable[[bytes, KeeperCall], Message]


class KeeperService:
    """Answers the calls Status, Measure, Remove and Rename, over a collector's directory.

    A run that is being written, by this collector or by another process, is protected by the lock
    files of its ranks.

    tally: the collector's counters, from which Status is answered.
    refusal_counts: counts and logs the calls that are refused.
    gate: knows who may read and who may delete which run.
    """

    def __init__(
        self, store: Path, tally: CollectorCounters, refusal_counts: RefusalCounts, gate: Gate
    ) -> None:
        self._gate = gate
        self._store = store
        self._tally = tally
        self._refusal_counts = refusal_counts

    @property
    def handler(self) -> grpc.GenericRpcHandler:
        """The handler of all four calls for the gRPC server, which hands it unparsed messages."""
        calls = {
            "Status": self._status,
            "Measure": self._measure,
            "Remove": self._remove,
            "Rename": self._rename,
        }
        return keeper_handler({name: self._answered(call) for name, call in calls.items()})

    def _answered(self, call: Answer) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def answer(message: bytes, context: grpc.ServicerContext) -> bytes:
            caller = Caller(context.peer(), identity=self._gate.name(context))
            try:
                self._check(message)
                return sealed(call(message, KeeperCall(context, caller)), check_of(message))
            except RunNotFoundError as error:
                self._refusal_counts.refuse(
                    context, Refusal(FailureKind.MISSING, str(error)), caller
                )
            except DecodeError:
                fault = FrameError("bytes that are no question to a keeper arrived")
                self._refusal_counts.refuse(context, fault, caller)
            except Exception as error:  # noqa: BLE001  # every fault is answered
                self._refusal_counts.refuse(context, error, caller)

        return answer

    def _check(self, message: bytes) -> None:
        try:
            check_seal(message)
        except GarbledError:
            self._tally.damage()
            raise

    def _status(self, message: bytes, asked: KeeperCall) -> StatusReply:
        """Answers Status: which ranks are being written, and how archiving goes.

        The answer names only runs that the caller may read.
        """
        StatusRequest.FromString(message)
        grant = self._gate.grant(asked.context)
        states = self._tally.roster.states()
        return StatusReply(
            writings=[_writing(one) for one in states if grant.may(Right.READ, one.run)],
            archive=_archiving(self._store, self._tally.archive, grant),
        )

    def _measure(self, message: bytes, asked: KeeperCall) -> MeasureReply:
        asked_for = MeasureRequest.FromString(message).run
        run = self._named(asked_for, asked, Right.READ, may_be_alone=True)
        stays = self._stays(run, asked)
        if has_run(self._store, run):
            with suppress(FileNotFoundError):  # it leaves the store at this moment
                taken = disk_bytes(run_directory(self._store, run))
                written = is_written(self._store, run)
                return MeasureReply(bytes=taken, written=written, stays=stays)
        if note_of(self._store, run) is None:
            raise RunNotFoundError(f"there is no run '{run}'")
        return MeasureReply(alone=True, stays=stays)

    def _stays(self, run: str, asked: KeeperCall) -> str:
        """Returns why the caller may not remove or rename a run; "" where the caller may."""
        try:
            self._gate.check(asked.context, Right.DELETE, run)
        except Refusal as refusal:
            return refusal.text
        return ""

    def _remove(self, message: bytes, asked: KeeperCall) -> RemoveReply:
        request = RemoveRequest.FromString(message)
        after = request.unless_after_ns if request.HasField("unless_after_ns") else None
        run = self._named(request.run, asked, Right.DELETE, may_be_alone=True)
        if not has_run(self._store, run):
            # A removal with an age limit is there to free room on this disk. An archived run takes
            # none, so that only a removal without a limit makes the store forget it.
            if after is not None:
                raise RunNotFoundError(f"run '{run}' is in its archive alone")
            forget_run(self._store, run)
            _log.info("run forgotten, its archive keeps it", extra=asked.caller.log_fields)
            return RemoveReply(bytes=0)
        freed = remove_run(self._store, run, unless_after=after)
        _log.info("run removed, %d bytes", freed, extra=asked.caller.log_fields)
        return RemoveReply(bytes=freed)

    def _rename(self, message: bytes, asked: KeeperCall) -> RenameReply:
        """Answers Rename: renames a run, where the caller has the right to delete both names.

        The right to the new name is checked too, because a caller could otherwise move a run among
        the runs of others.
        """
        request = RenameRequest.FromString(message)
        run = self._named(request.run, asked, Right.DELETE)
        self._gate.check(asked.context, Right.DELETE, check_run_name(request.name))
        rename_run(self._store, run, request.name)
        _log.info("run renamed to %s", request.name, extra=asked.caller.log_fields)
        return RenameReply()

    def _named(
        self, run: str, asked: KeeperCall, right: Right, *, may_be_alone: bool = False
    ) -> str:
        """Checks that a run exists and that the caller has `right` to it; returns the run's name.

        The right is checked first: a caller without it is not told whether the run exists. Where
        the run is a link, reading also needs the right to the run that the link leads to; removing
        and renaming change the link alone. The run's name is noted in `asked.caller`, for the log.

        Raises InvalidNameError for a text that is no name of a run, a Refusal where the caller
        lacks the right, RunNotFoundError where there is no such run, OptionError for a run that is
        in its archive alone unless `may_be_alone`.

        run: the name, as the caller gave it.
        may_be_alone: whether to accept a run whose files are in its archive and no longer here.
        """
        asked.caller.run = check_stored_run_name(run)
        self._gate.check(asked.context, right, run)
        if right is Right.READ and (other := linked_run(self._store, run)) is not None:
            self._gate.check(asked.context, right, other)
        if not has_run(self._store, run):
            if note_of(self._store, run) is not None:
                if may_be_alone:
                    return run
                raise OptionError(
                    f"run '{run}' is in its archive alone, where a collector changes nothing"
                )
            raise RunNotFoundError(f"there is no run '{run}'")
        return run


def _archiving(store: Path, tally: ArchiveTally | None, grant: Grant) -> ArchivingTold | None:
    """Returns the state of archiving, with the names of only those runs that the caller may read.

    Returns None where `tally` is None and no run of the store is in an archive either.

    tally: the counters of this collector's archiver; None for a collector that archives nothing.
    grant: the caller's rights.
    """
    archived = noted_runs(store)
    if tally is None and not archived:
        return None
    tally = tally or ArchiveTally()

    def readable(runs: Iterable[str]) -> list[str]:
        return [run for run in runs if grant.may(Right.READ, run)]

    alone = (run for run in archived if not run_directory(store, run).exists())
    failing = tally.failing
    return ArchivingTold(
        place=tally.place or _noted_place(store, readable(archived)),
        archived=len(readable(archived)),
        alone=readable(alone),
        bytes=tally.bytes,
        waiting=readable(tally.due),
        failing=[Failing(run=run, problem=failing[run]) for run in readable(failing)],
        problem=tally.away,
    )


def _noted_place(store: Path, runs: Sequence[str]) -> str:
    """Returns the directory or URL of the archive that holds the first archived one of some runs.

    The place is read from the note, a file that stays in the store for each archived run. Damaged
    notes are passed over. Returns "" where no run has a note. The function is for a collector that
    archives nothing itself: its runs were archived by hand or by an earlier collector.
    """
    for run in runs:
        with suppress(StoreError):  # a damaged note, of which `anchor doctor` and readers tell
            note = note_of(store, run)
            if note is not None:
                return note.place
    return ""


def _writing(one: StreamState) -> Writing:
    return Writing(
        run=one.run,
        rank=one.rank,
        host=one.host,
        since_ns=one.since_ns,
        last_seen_ns=one.last_seen_ns,
        records_per_second=one.records_per_second,
        bytes_per_second=one.bytes_per_second,
        lag=one.lag,
        backlog=one.backlog,
    )
