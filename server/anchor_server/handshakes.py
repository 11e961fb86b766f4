"""Notices TLS handshakes that fail.

gRPC does not report them, and a client that does not trust the collector's certificate closes the
connection without a word. What a server can see is a connection that ended before a call came over
it. So the connections of the port are looked up among this process's open files when a handshake
begins, and looked at again until a call has come over them, they are closed, or they have been open
for longer than gRPC lets a handshake take.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import grpc

from anchor_server.handlers import behind
from anchorlib.wire import HANDSHAKE_SECONDS

__all__ = ["CallStartInterceptor", "Handshakes"]

_FILES: Final = Path("/dev/fd")
_LOOK_SECONDS: Final = 0.25
_SHAKEN_SECONDS: Final = HANDSHAKE_SECONDS + 2  # gRPC ends a handshake that takes longer


@dataclass(slots=True)
class _Connection:
    file: int
    peer: str
    since: float
    called: bool = False
    gone: bool = False


class Handshakes:
    """Finds connections that end before a call came over them: their TLS handshake has failed.

    Any thread may call the methods. The owner sets `port`, the port that is watched, once the
    server has bound it.

    on_failed: called, by a thread of this object, with the client's address of such a connection.
    """

    def __init__(self, on_failed: Callable[[str], None]) -> None:
        self.port = 0
        self._on_failed = on_failed
        self._connections: dict[int, _Connection] = {}  # by inode
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch_new(self) -> None:
        """Begins to watch the connections of the port that are not watched yet.

        The owner calls this when a handshake is about to begin.
        """
        with self._changed, suppress(OSError):
            self._forget_gone()
            for inode, file, peer in _peers(self.port, self._connections):
                self._connections[inode] = _Connection(file, peer, time.monotonic())
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._watch, name="anchor-handshakes", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def called(self, peer: str) -> None:
        """Notes that a call came from a client, so that the handshake of its connection succeeded.

        peer: the client's address and port, as gRPC writes them.
        """
        with self._changed:
            for connection in self._connections.values():
                if connection.peer == unquote(peer):
                    connection.called = True

    def close(self) -> None:
        """Stops watching connections, and waits for the watching thread to end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or bool(self._silent()))
                if self._closed:
                    return
                failed = self._failed()
            for connection in failed:
                self._on_failed(connection.peer)
            time.sleep(_LOOK_SECONDS)

    def _silent(self) -> list[_Connection]:
        return [one for one in self._connections.values() if not one.called]

    def _failed(self) -> list[_Connection]:
        """Returns the connections that were closed without a gRPC call, and forgets them.

        The watching thread looks here again and again. A connection is returned at the second look
        after it was closed, so that `called` has time to report a call that came shortly before the
        end. A connection that stays open for longer than a handshake may take counts as if a call
        had come.
        """
        failed = []
        for inode, one in list(self._connections.items()):
            if one.called:
                continue
            if one.gone:
                del self._connections[inode]
                failed.append(one)
            one.gone = not _is_open(one.file, inode)
            one.called = not one.gone and time.monotonic() - one.since > _SHAKEN_SECONDS
        return failed

    def _forget_gone(self) -> None:
        for inode, one in list(self._connections.items()):
            if one.called and not _is_open(one.file, inode):
                del self._connections[inode]


class CallStartInterceptor(grpc.ServerInterceptor):
    """A gRPC interceptor that calls `on_call` with the client's address before each call."""

    def __init__(self, on_call: Callable[[str], None]) -> None:
        self._on_call = on_call

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Returns the handler of a call, wrapped so that `on_call` is called before it runs.

        Returns None for a call that the server does not have.
        """
        handler = continuation(handler_call_details)
        return None if handler is None else behind(handler, self._tell)

    def _tell(self, context: grpc.ServicerContext) -> None:
        self._on_call(context.peer())


def _peers(port: int, known: Container[int]) -> Iterator[tuple[int, int, str]]:
    """Yields (inode, descriptor, client's address) of this process's connections to `port`.

    The address is written as gRPC writes addresses, with the client's port.

    known: inodes of connections to leave out.
    """
    for path in list(_FILES.iterdir()):
        with suppress(OSError):  # closed meanwhile, or no connection
            file = int(path.name)
            file_stat = os.fstat(file)
            if not stat.S_ISSOCK(file_stat.st_mode) or file_stat.st_ino in known:
                continue
            if peer := _peer(file, port):
                yield file_stat.st_ino, file, peer


def _peer(file: int, port: int) -> str:
    """Returns the client's address of a connection to `port`, as gRPC writes addresses.

    The client's port is part of the address. Returns "" for a socket of another port or kind;
    raises OSError for a socket that has no connection, such as the one that listens.

    file: the descriptor of the socket.
    """
    end = socket.socket(fileno=file)
    try:
        if end.family not in (socket.AF_INET, socket.AF_INET6) or end.getsockname()[1] != port:
            return ""
        host, other = end.getpeername()[:2]
    finally:
        end.detach()  # gRPC owns the descriptor: it must stay open
    host = host.removeprefix("::ffff:") if "." in host else host
    return f"ipv6:[{host}]:{other}" if ":" in host else f"ipv4:{host}:{other}"


def _is_open(file: int, inode: int) -> bool:
    try:
        return os.fstat(file).st_ino == inode
    except OSError:
        return False
