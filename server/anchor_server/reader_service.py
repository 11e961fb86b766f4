"""The Reader service of gRPC: gives readers the files of the store, and nothing outside it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError

from anchor_server.counters import CollectorCounters
from anchor_server.gate import Gate
from anchor_server.refusal_counts import Caller, RefusalCounts
from anchor_server.refusals import Refusal, abort
from anchor_server.tokens import Grant, Right
from anchorlib.errors import InvalidNameError, StoreError
from anchorlib.names import escape
from anchorlib.store import ArchivedRuns, names_beneath, open_beneath
from anchorlib.wire import (
    LISTED_BYTES,
    READ_BYTES,
    FailureKind,
    FrameError,
    GarbledError,
    GetReply,
    GetRequest,
    ListReply,
    ListRequest,
    check_of,
    check_seal,
    reader_handler,
    sealed,
)

__all__ = ["ReaderService"]

Q = TypeVar("Q", GetRequest, ListRequest)

_SUFFIX: Final = ".zarr"

_OF_THE_FILE = (errno.EACCES, errno.EPERM, errno.EIO, errno.ELOOP, errno.ESTALE)


class ReaderService:
    """Answers the calls Get and List over a collector's directory.

    Hidden files, such as locks and unfinished files, are not given out.

    tally: the collector's counters. refusal_counts: counts and logs the calls that are refused.
    gate: knows who may read which run; a list of runs names only runs that the caller may read.
    """

    def __init__(
        self, store: Path, tally: CollectorCounters, refusal_counts: RefusalCounts, gate: Gate
    ) -> None:
        self._gate = gate
        self._root = store.resolve()
        self._archive = ArchivedRuns(self._root)
        self._tally = tally
        self._refusal_counts = refusal_counts

    @property
    def handler(self) -> grpc.GenericRpcHandler:
        """The handler of both calls for the gRPC server, which hands it unparsed messages."""
        return reader_handler(self.get, self.list)

    def get(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """Answers Get: the bytes of a file, or of a range in it, as many as one reply carries.

        message: the unparsed request. The result is a serialised GetReply; an error ends the call.
        """
        try:
            request = self._parsed(GetRequest, message)
            return sealed(self._get(request, context), check_of(message))
        except Exception as error:  # noqa: BLE001  # every fault is answered
            self._refuse(context, error, message)

    def list(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """Answers List: the names in a folder, as many as one reply carries.

        There are no names where the folder does not exist. Names of folders end in "/". At the top
        of the store only runs that the caller may read are named.

        message: the unparsed request. The result is a serialised ListReply; an error ends the call.
        """
        try:
            request = self._parsed(ListRequest, message)
            return sealed(self._list(request, context), check_of(message))
        except Exception as error:  # noqa: BLE001  # every fault is answered
            self._refuse(context, error, message)

    def _refuse(self, context: grpc.ServicerContext, error: Exception, message: bytes) -> NoReturn:
        if isinstance(error, Refusal) and error.kind is FailureKind.MISSING:
            abort(context, error)  # readers ask for files that need not exist: no fault
        run = _run_asked_for(message)
        caller = Caller(context.peer(), run, identity=self._gate.name(context))
        self._refusal_counts.refuse(context, error, caller)

    def _get(self, request: GetRequest, context: grpc.ServicerContext) -> GetReply:
        length = min(request.length or READ_BYTES, READ_BYTES)
        with _words(request.key):
            inside = self._inside(request.key, context)
            descriptor = open_beneath(str(self._root), inside)
            if descriptor is None:
                return self._archived(request.key, inside, request.offset, length)
            try:
                size = os.fstat(descriptor).st_size
                data = os.pread(descriptor, length, min(request.offset, size))
            finally:
                os.close(descriptor)
        return GetReply(size=size, data=data)

    def _archived(self, key: str, inside: str, offset: int, length: int) -> GetReply:
        """Answers Get for a file of a run that is no longer in the store, from the run's archive.

        Raises a Refusal where no archive has the file.

        key: the file's path relative to the store, as the reader gave it.
        inside: the same path with links resolved.
        offset, length: the first byte, and the most bytes to return.
        """
        data = self._archive.get(inside, offset, length)
        if data is None:
            raise _missing(key)
        # The size of an archived file is not known: where the range is full, the size is said to
        # be one byte more, so that the reader asks for the next range.
        return GetReply(size=offset + len(data) + (len(data) == length), data=data)

    def _list(self, request: ListRequest, context: grpc.ServicerContext) -> ListReply:
        prefix = request.prefix.rstrip("/")
        with _words(prefix):
            inside = self._inside(prefix, context) if prefix else ""
            names = names_beneath(str(self._root), inside)
            # A run is removed by one rename, and deleted after that: names that were listed in
            # between may be a part of the run's, so that the archive is asked.
            if not names or not (self._root / inside.split("/")[0]).is_dir():
                names = self._archive.list(inside) or names
            if not prefix:
                names = sorted({*names, *self._archive.folders()})
        grant = self._gate.grant(context)
        if not prefix and not grant.may(Right.READ, None):
            names = [name for name in names if self._may_read(grant, name.rstrip("/"))]
        reply = ListReply()
        room = LISTED_BYTES
        for name in names:
            if name <= request.after:
                continue
            if room <= 0:
                reply.more = True
                break
            reply.names.append(name)
            room -= len(name.encode()) + 4
        return reply

    def _parsed(self, kind: type[Q], message: bytes) -> Q:
        try:
            check_seal(message)
            return kind.FromString(message)
        except GarbledError:
            self._tally.damage()
            raise
        except DecodeError:
            raise FrameError(f"bytes that are no {kind.__name__} arrived") from None

    def _may_read(self, grant: Grant, top: str) -> bool:
        """Returns whether the caller may read a run or file of the store.

        Where the folder or file is a link, the caller needs the right to the link's target too.

        grant: the caller's rights.
        top: the name of the run's folder, or of the file, at the top of the store.
        """
        path = self._root / top
        if path.is_symlink() and not grant.may(
            Right.READ, _run_of(Path(os.path.realpath(path)).name)
        ):
            return False
        return grant.may(Right.READ, _run_of(top))

    def _inside(self, key: str, context: grpc.ServicerContext) -> str:
        """Returns the key of a file with links resolved, after the caller's right was checked.

        A key is a path relative to the store; a run's folder may be a link to another folder of the
        store. Raises InvalidNameError for a text that is no key, StoreError where a link leads out
        of the store, and a Refusal where the caller may not read the run, or the run that the link
        leads to.
        """
        top, *rest = key.split("/")
        if "\0" in key or not all(part and not part.startswith(".") for part in (top, *rest)):
            raise InvalidNameError(f"'{escape(key[:200])}' is no key of a store")
        self._gate.check(context, Right.READ, _run_of(top))
        path = Path(os.path.realpath(self._root / top))
        inside = path.is_relative_to(self._root) and path.relative_to(self._root).parts
        if not inside or any(part.startswith(".") for part in inside):
            raise StoreError(f"'{escape(key[:200])}' leads out of the store")
        if inside[0] != top:
            self._gate.check(context, Right.READ, _run_of(inside[0]))
        return "/".join((*inside, *rest))


@contextlib.contextmanager
def _words(key: str) -> Iterator[None]:
    """A context that turns an error about one file or folder into a Refusal that names `key`.

    OSErrors that concern the whole store or machine are raised as they are.

    key: the path of the file or folder, relative to the store.
    """
    try:
        yield
    except StoreError as error:
        raise Refusal(FailureKind.STORE, str(error)) from None
    except OSError as error:
        if error.errno not in _OF_THE_FILE:
            raise
        text = f"cannot read '{escape(key[:200])}': {error.strerror}"
        raise Refusal(FailureKind.STORE, text) from None


def _run_of(folder: str) -> str | None:
    """Returns the name of the run whose folder this is; None for any other name in the store."""
    return folder.removesuffix(_SUFFIX) if folder.endswith(_SUFFIX) else None


def _run_asked_for(message: bytes) -> str:
    """Returns the name of the run that a refused request asks for, for the log.

    Returns "" where the request names no run, and where it cannot be parsed.
    """
    with contextlib.suppress(DecodeError):
        # In either request the key, or the prefix, is field 1, so that one parser reads both.
        top = GetRequest.FromString(message).key.split("/")[0]
        return (_run_of(top) or "")[:200]
    return ""


def _missing(key: str) -> Refusal:
    text = f"there is no '{escape(key[:200])}' in the store"
    return Refusal(FailureKind.MISSING, text)
