"""The client of a collector's service Keeper: measures, removes, renames runs; says who writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from anchorlib.errors import OptionError, RunNotFoundError
from anchorlib.wire.address import Address
from anchorlib.wire.clients.unary_channel import NotThereError, UnaryChannel
from anchorlib.wire.connection import keep_call
from anchorlib.wire.credentials import Credentials
from anchorlib.wire.v1.collector_pb2 import (
    ArchivingTold,
    MeasureReply,
    MeasureRequest,
    RemoveReply,
    RemoveRequest,
    RenameReply,
    RenameRequest,
    StatusReply,
    StatusRequest,
    Writing,
)

__all__ = ["KeeperClient"]

_STATUS_SECONDS: Final = 30.0
_SECONDS: Final = 3600.0  # that an answer may take: a run of terabytes is deleted file by file

R = TypeVar("R", bound=Message)


class KeeperClient:
    """Calls the collector's service Keeper; may be used by several threads.

    The methods raise CollectorError if the collector refuses or cannot be reached, StoreError if
    the collector finds that a stored run is damaged.

    address: an Address or a URL; a run in it is ignored.
    credentials: None takes those that the environment variables describe.
    """

    def __init__(self, address: Address | str, credentials: Credentials | None = None) -> None:
        self._line = UnaryChannel(address, credentials)
        self.address = self._line.address

    def status(self) -> Sequence[Writing]:
        """Return the ranks that are being written now, of the runs that the token may read."""
        return self._state().writings

    def archive(self) -> ArchivingTold | None:
        """Return how far the collector has come with archiving the runs that the token may read.

        Returns None if the collector archives no runs and has none in an archive.
        """
        answer = self._state()
        return answer.archive if answer.HasField("archive") else None

    def measure(self, run: str) -> tuple[int, bool]:
        """Return how many bytes of disk a run takes, and whether a living process writes it.

        Raises RunNotFoundError for a run that the collector does not have, OptionError for a run
        whose files are in the collector's archive alone.
        """
        reply = self.standing(run)
        if reply.alone:
            raise OptionError(
                f"run {run!r} of {self.address} is in its archive alone, where a collector changes "
                "nothing"
            )
        return reply.bytes, reply.written

    def standing(self, run: str) -> MeasureReply:
        """Return a run's size, whether it is being written, and whether it may be changed.

        The field `stays` of the reply says why the collector would neither remove nor rename the
        run: "" if it knows no reason, or if its version is too old to say. The field `alone` says
        whether the run's files are only in the collector's archive. Raises RunNotFoundError for a
        run that the collector does not have.
        """
        return self._ask("Measure", MeasureRequest(run=run), MeasureReply, run, again=True)

    def remove(self, run: str, *, unless_after: int | None = None) -> int:
        """Remove a run, and return how many bytes of disk this freed.

        unless_after: a time in nanoseconds since the epoch. If the run was written to after this
            time, the run is kept and CollectorError is raised.

        Raises RunNotFoundError for a run that the collector does not have.
        """
        request = RemoveRequest(run=run, unless_after_ns=unless_after)
        return self._ask("Remove", request, RemoveReply, run).bytes

    def rename(self, run: str, name: str) -> None:
        """Rename the run to `name`; raise RunNotFoundError if the collector does not have it."""
        self._ask("Rename", RenameRequest(run=run, name=name), RenameReply, run)

    def close(self) -> None:
        """Close the channel to the collector."""
        self._line.close()

    def _state(self) -> StatusReply:
        method = keep_call(self._line.channel, "Status")
        seconds = _STATUS_SECONDS
        return self._line.ask(method, StatusRequest(), StatusReply, timeout=seconds, again=True)

    def _ask(
        self, call: str, request: Message, kind: type[R], run: str, *, again: bool = False
    ) -> R:
        method = keep_call(self._line.channel, call)
        try:
            return self._line.ask(method, request, kind, timeout=_SECONDS, again=again)
        except NotThereError:
            raise RunNotFoundError(f"no run {run!r} at {self.address}") from None
