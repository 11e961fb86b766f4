"""The collector: a gRPC server over one directory, and its life.

with serve(Path("anchors"), bind="127.0.0.1:0") as collector:
    print(collector.address)
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Final, Self

import grpc
from grpc_health.v1 import health_pb2_grpc

from anchor_server.access import Access
from anchor_server.access_file import AccessFile
from anchor_server.archiving import Archiver, Archiving
from anchor_server.door import Door
from anchor_server.files import ReaderService
from anchor_server.gate import Gate
from anchor_server.handshakes import Calls, Handshakes
from anchor_server.health import WATCHERS, HealthService
from anchor_server.keeping import KeeperService
from anchor_server.limits import Limits
from anchor_server.memory import keep_memory
from anchor_server.premises import checked_host, end_removals, port_taken, take_store
from anchor_server.push import PushService, StreamLimits
from anchor_server.ranks import Ranks
from anchor_server.tally import ArchiveTally, Tally
from anchor_server.tls import Certificates, ServerTLS
from anchor_server.trouble import Trouble
from anchorlib.errors import CollectorError, OptionError
from anchorlib.wire import (
    HANDSHAKE_SECONDS,
    IDLE_SECONDS,
    KEEPALIVE_SECONDS,
    MESSAGE_BYTES,
    PING_SECONDS,
    RECORD_BYTES,
    REST_SECONDS,
    STREAMS,
    push_handler,
)

__all__ = ["DEFAULT_BIND", "Collector", "serve"]

DEFAULT_BIND: Final = "127.0.0.1:50051"

_SPARE_THREADS = 16 + WATCHERS  # for everything that is not a stream
_WAITING_CALLS = 256
_LAST_WORDS = 0.5  # seconds that calls have at least to be answered
_ARCHIVING = 5.0  # seconds that a rank on its way to the archive may take to arrive
_PATIENCE = 2.0  # seconds that a stream which ended may take to give its rank back
_NUMBERS = itertools.count()  # of the collectors of this process


class Collector:
    """Serves the store in a directory: takes records in, gives files out.

    store: the directory, made if need be.
    bind: host:port; port 0 picks one. `address` says which.
    tls, token, access: who may call. `token` has all rights; `access` is a file that names several
        tokens and says what each may (see `anchor_server.access`), and is read again when it
        changes: one of the two. Beyond loopback tls and one of them are needed (or tls with a
        client CA), unless `insecure` says otherwise.
    fsync: acknowledge what survives power loss, not only kill -9 of this process.
    read_only: give files out and change nothing on disk; training processes keep what they have to
        say, and come back.
    max_streams: training processes at once.
    idle_timeout: seconds that a stream may say nothing; a training process that rests for longer
        comes back when it has something to say.
    max_bytes: of one rank on disk. max_run_bytes: of all ranks of a run together. Beyond either
        values are left out. A twentieth of the disk stays free in any case.
    max_run_files, max_runs, max_rate: files and folders of a run, runs in the store, bytes a second
        that all streams send together. What is beyond them waits in its spool.
    record_bytes: the most raw storage of one record.
    archiving: where closed runs go; None leaves them here.

    What else bounds a client stands in `anchorlib.wire.limits`.

    Raises OptionError for settings that cannot be, CollectorError where the port cannot be bound,
    StoreError where the directory cannot be made or written.
    """

    def __init__(  # noqa: PLR0913  # each is a setting of `anchor serve`
        self,
        store: Path | str,
        bind: str = DEFAULT_BIND,
        *,
        tls: ServerTLS | None = None,
        token: str | None = None,
        access: Path | None = None,
        insecure: bool = False,
        fsync: bool = False,
        read_only: bool = False,
        max_streams: int = STREAMS,
        idle_timeout: float = REST_SECONDS,
        max_bytes: int | None = None,
        max_run_bytes: int | None = None,
        max_run_files: int | None = None,
        max_runs: int | None = None,
        max_rate: int | None = None,
        record_bytes: int = RECORD_BYTES,
        archiving: Archiving | None = None,
    ) -> None:
        self.store = Path(store)
        named = tls is not None and tls.client_ca_file is not None
        self._access = AccessFile(access, self._admit, certificates=named) if access else None
        known = self._known(token)
        guarded = tls is not None and (named or known.anyone is None)
        host = checked_host(bind, guarded=guarded, insecure=insecure)
        take_store(self.store, fsync=fsync, read_only=read_only)
        self._ranks = Ranks(
            self.store,
            fsync=fsync,
            max_bytes=max_bytes,
            limits=Limits(runs=max_runs, run_bytes=max_run_bytes, run_files=max_run_files),
            patience=_PATIENCE,
        )
        self.tally = Tally()
        self._archiver = _archiver(self.store, archiving, self.tally)
        door = Door(self.tally)
        self._handshakes = Handshakes(door.refuse_handshake)
        self._certificates = None if tls is None else Certificates(tls, self._handshakes.knock)
        self._trouble = Trouble(self.tally)
        self._gate = Gate(known, door, self._trouble, read_only=read_only)
        self._push = PushService(
            self._ranks,
            self._gate,
            self.tally,
            self._trouble,
            StreamLimits(max_streams, idle_timeout, record_bytes, max_rate),
            fsync=fsync,
        )
        self._health = HealthService()
        self._prefix = f"anchor-collector-{next(_NUMBERS)}"
        self._threads = ThreadPoolExecutor(max_streams + _SPARE_THREADS, self._prefix)
        self._has_ended = False
        self._server = self._make_server(max_streams)
        self._handshakes.port = self._bind(bind)
        self.address = f"{host}:{self._handshakes.port}"
        self._stopped = threading.Event()
        self._stop_lock = threading.Lock()

    def _known(self, token: str | None) -> Access:
        """Who may do what: as the access file says, or whoever has the token."""
        if self._access is None:
            return Access.of_token(token)
        if token is not None:
            raise OptionError("a collector has one token, or an access file that names several")
        return self._access.read()

    def start(self) -> None:
        """Serve from now on, on threads of its own."""
        keep_memory()
        if not self._gate.read_only:
            # A thread of its own: what an interrupted removal left may be terabytes.
            Thread(target=end_removals, args=(self.store,), daemon=True).start()
        self._server.start()
        self._health.say(serving=True)
        if self._access is not None:
            self._access.start()
        if self._archiver is not None:
            self._archiver.start()

    def renew(self, token: str | None = None) -> None:
        """Read certificates (for connections from now on) and access again, or ask for `token`.

        Connections and calls that there are go on, but for streams of those who would not be let
        in any more by the access file: they end. token: None leaves the one there is; a collector
        that was made without a token never asks for one.

        Raises OptionError for files that cannot be used; those there were are used on.
        """
        if self._access is not None:
            self._access.read()
        if self._certificates is not None:
            self._certificates.renew()
        if self._access is not None:
            self._access.renew()
        elif token is not None and self._gate.access.anyone is None:
            self._gate.access = Access.of_token(token)

    def _admit(self, access: Access) -> None:
        self._gate.access = access
        self._push.look_again()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether the collector was stopped within `timeout` seconds (None: wait for it)."""
        return self._stopped.wait(timeout)

    def stop(self, grace: float = 10.0, *, readers: bool = False) -> None:
        """Write and acknowledge what has arrived, publish, give all ranks back, end.

        Meanwhile readers are answered, and the health service says NOT_SERVING. After `grace`
        seconds calls that are still going on are cancelled. A second call waits for the first.

        readers: those in the middle of something go on until nobody has asked for anything for two
            seconds, within the same `grace`.
        """
        with self._stop_lock:
            if self._stopped.is_set():
                return
            over = time.monotonic() + grace
            self._health.say(serving=False)
            if self._access is not None:
                self._access.stop()
            self._push.stop()
            self._release(over)
            self._push.wait_idle(max(over - time.monotonic(), 0.0))
            if readers:
                self._gate.readers.wait_quiet(over)
            self._health.end()
            left = max(over - time.monotonic(), _LAST_WORDS)
            self._server.stop(left).wait(left + 1.0)
            self._ranks.wait_idle(_PATIENCE)
            self._push.wait_idle(_PATIENCE)
            self._handshakes.close()
            self._push.close()
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._has_ended = self._join(_PATIENCE)
            self._stopped.set()

    def _release(self, over: float) -> None:
        """Gives ranks and runs back; a run that is not archived yet is gone on with later."""
        if self._archiver is not None:
            self._archiver.end()
        self._ranks.wait_idle(over - time.monotonic())
        if self._archiver is not None:
            self._archiver.stop(min(max(over - time.monotonic(), 0.0), _ARCHIVING))

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs any more; False where a call does not end, cancelled or not.

        All that was acknowledged is in the store either way. Python waits for such a call's thread
        when it ends.
        """
        return self._has_ended

    def _join(self, seconds: float) -> bool:
        """Whether all threads that answer calls end within `seconds`."""
        over = time.monotonic() + seconds
        for thread in threading.enumerate():
            if thread.name.startswith(f"{self._prefix}_"):
                thread.join(max(over - time.monotonic(), 0.0))
        return not any(one.name.startswith(f"{self._prefix}_") for one in threading.enumerate())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _make_server(self, max_streams: int) -> grpc.Server:
        watched = [] if self._certificates is None else [Calls(self._handshakes.called)]
        server = grpc.server(
            self._threads,
            handlers=[
                push_handler(self._push.push),
                KeeperService(self.store, self.tally, self._trouble, self._gate).handler,
                ReaderService(self.store, self.tally, self._trouble, self._gate).handler,
            ],
            interceptors=[*watched, self._gate],
            options=[*_OPTIONS, ("grpc.max_concurrent_streams", max_streams + _SPARE_THREADS)],
            maximum_concurrent_rpcs=max_streams + _SPARE_THREADS + _WAITING_CALLS,
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        return server

    def _bind(self, bind: str) -> int:
        try:
            if self._certificates is None:
                return self._server.add_insecure_port(bind)
            return self._server.add_secure_port(bind, self._certificates.credentials())
        except RuntimeError:
            raise CollectorError(port_taken(bind)) from None


# Two servers on one port would share its clients between them, in silence: hence no reuseport.
_OPTIONS: Final[list[tuple[str, Any]]] = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_SECONDS * 500),  # of bytes on the way, in TCP
    ("grpc.http2.ping_timeout_ms", PING_SECONDS * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Without this gRPC stops to ping a connection on which nothing is said.
    ("grpc.http2.max_pings_without_data", 0),
    # A connection that says nothing, or one thing for ever, holds nothing for long.
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1000),
    ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_SECONDS * 500),
]


@contextmanager
def serve(store: Path | str, bind: str = "127.0.0.1:0", **settings: Any) -> Iterator[Collector]:
    """A collector for as long as the context lasts; the settings are those of `Collector`."""
    with Collector(store, bind, **settings) as collector:
        yield collector


def _archiver(store: Path, archiving: Archiving | None, tally: Tally) -> Archiver | None:
    if archiving is None:
        return None
    tally.archive = ArchiveTally(archiving.shelf.place)
    return Archiver(store, archiving, tally.archive)
