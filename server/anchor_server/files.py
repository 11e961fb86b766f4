"""The reader's service: files of the store, and nothing else."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError

from anchor_server.refusals import Refusal, abort
from anchor_server.tally import Tally
from anchor_server.trouble import Caller, Trouble
from anchorlib.errors import InvalidNameError
from anchorlib.names import escape
from anchorlib.wire import (
    LISTED_BYTES,
    READ_BYTES,
    DamagedError,
    FrameError,
    GetReply,
    GetRequest,
    Kind,
    ListReply,
    ListRequest,
    check_of,
    check_seal,
    reader_handler,
    sealed,
)

__all__ = ["ReaderService"]

Q = TypeVar("Q", GetRequest, ListRequest)

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


class ReaderService:
    """Serves Get and List over a directory.

    Nothing hidden is part of a store, so that locks and unfinished files are not given out either.
    """

    def __init__(self, store: Path, tally: Tally, trouble: Trouble) -> None:
        self._root = store.resolve()
        self._tally = tally
        self._trouble = trouble

    @property
    def handler(self) -> grpc.GenericRpcHandler:
        """Both calls, for the server; requests come as bytes, and are looked at here."""
        return reader_handler(self.get, self.list)

    def get(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """A file, or as much of a range as one reply carries."""
        try:
            return sealed(self._get(self._parsed(GetRequest, message)), check_of(message))
        except Exception as error:  # noqa: BLE001  # every fault is answered
            self._refuse(context, error)

    def list(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """The names in a folder, as many as one reply carries; none where there is no folder."""
        try:
            return sealed(self._list(self._parsed(ListRequest, message)), check_of(message))
        except Exception as error:  # noqa: BLE001  # every fault is answered
            self._refuse(context, error)

    def _refuse(self, context: grpc.ServicerContext, error: Exception) -> NoReturn:
        if isinstance(error, Refusal) and error.kind is Kind.MISSING:
            abort(context, error)  # readers ask for what may be there: it is an answer like others
        self._trouble.refuse(context, error, Caller(context.peer()))

    def _get(self, request: GetRequest) -> GetReply:
        length = min(request.length or READ_BYTES, READ_BYTES)
        try:
            # A pipe that someone put there would block until it has a writer.
            descriptor = os.open(self._path(request.key), os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in _MISSING:
                raise _missing(request.key) from None
            raise
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _missing(request.key)
            data = os.pread(descriptor, length, min(request.offset, status.st_size))
        finally:
            os.close(descriptor)
        return GetReply(size=status.st_size, data=data)

    def _list(self, request: ListRequest) -> ListReply:
        prefix = request.prefix.rstrip("/")
        folder = self._path(prefix) if prefix else self._root
        reply = ListReply()
        room = LISTED_BYTES
        for name in _names(folder):
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
        except DamagedError:
            self._tally.damage()
            raise
        except DecodeError:
            raise FrameError(f"bytes that are no {kind.__name__} arrived") from None

    def _path(self, key: str) -> Path:
        """Where the file of a key is. Raises InvalidNameError for a key that leads elsewhere."""
        parts = key.split("/")
        if "\0" in key or not all(part and not part.startswith(".") for part in parts):
            raise InvalidNameError(f"'{escape(key[:200])}' is no key of a store")
        path = Path(os.path.realpath(self._root.joinpath(*parts)))
        inside = path.is_relative_to(self._root) and path.relative_to(self._root).parts
        if not inside or any(part.startswith(".") for part in inside):
            raise InvalidNameError(f"'{escape(key[:200])}' leads out of the store")
        return path


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(
                f"{entry.name}/" if _is_folder(entry) else entry.name
                for entry in entries
                if not entry.name.startswith(".")
            )
    except OSError as error:
        if error.errno in _MISSING:
            return []
        raise


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _missing(key: str) -> Refusal:
    text = f"there is no '{escape(key[:200])}' in the store"
    return Refusal(Kind.MISSING, text)
