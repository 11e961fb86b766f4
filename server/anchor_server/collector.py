"""The class `Collector`: a gRPC server over one directory; how it is made, started and stopped.

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

from anchor_server.access_file import AccessFile
from anchor_server.address_and_store import checked_host, end_removals, take_store
from anchor_server.archiving import Archiver, Archiving
from anchor_server.counters import ArchiveTally, CollectorCounters
from anchor_server.gate import Gate
from anchor_server.grpc_server import bind_port, make_server
from anchor_server.handshakes import CallStartInterceptor, Handshakes
from anchor_server.health import WATCHERS, HealthService
from anchor_server.keeper_service import KeeperService
from anchor_server.limits import Limits
from anchor_server.message_memory import keep_memory
from anchor_server.push_service import PushService, StreamLimits
from anchor_server.rank_holders import RankHolders
from anchor_server.reader_service import ReaderService
from anchor_server.refusal_counts import RefusalCounts
from anchor_server.tls import Certificates, ServerTLS
from anchor_server.tokens import Access
from anchor_server.turned_away import TurnedAway
from anchorlib.errors import OptionError
from anchorlib.wire import RECORD_BYTES, REST_SECONDS, STREAMS, push_handler

__all__ = ["DEFAULT_BIND", "Collector", "serve"]

DEFAULT_BIND: Final = "127.0.0.1:50051"

_SPARE_THREADS = 16 + WATCHERS  # for all calls but streams
_LAST_WORDS = 0.5  # seconds that open calls get at least, however little grace is left
_ARCHIVING = 5.0  # seconds that a stop waits at most for the rank that is being archived
_PATIENCE = 2.0  # seconds that an ended stream may take to give its rank back
_NUMBERS = itertools.count()  # one for each collector of this process


class Collector:
    """Serves the store in a directory: takes records from trainers, gives files to readers.

    store: the directory, made where it does not exist.
    bind: host:port; port 0 picks a free port. `address` holds the port that was picked.
    tls: the certificate of the port; None serves without TLS.
    token, access: who may call. Whoever shows `token` has all rights; `access` is a file that names
        several tokens with the rights of each (see `anchor_server.tokens`) and is read again when
        it changes. A collector has a token or an access file, not both; with neither, anyone may
        call.
    insecure: allow an address that other machines can reach. Without it such an address needs tls
        and a token or access file (or tls with a client CA).
    fsync: acknowledge records once they survive power loss, not only kill -9 of this process.
    read_only: give files out and change nothing on disk; training processes keep their records in
        their spools, and connect again later.
    max_streams: how many training processes may be connected at once.
    idle_timeout: how many seconds a stream (Push call) may send nothing before it is ended; a
        training process connects again when it has records to send.
    max_bytes, max_run_bytes: most bytes on disk of one rank, and of all ranks of a run together.
        Beyond either limit values are left out and summaries kept. A twentieth of the disk stays
        free in any case.
    max_run_files, max_runs, max_rate: most files and folders of a run, most runs in the store, and
        most bytes a second that all streams send together. Records beyond these limits wait in the
        trainer's spool (a queue on its disk).
    record_bytes: the most bytes of values in one record.
    archiving: where and when closed runs are archived; None leaves them in the store.

    `anchorlib.wire.limits` holds further limits, which are constants.

    Raises OptionError for settings that contradict each other or cannot be used, CollectorError
    where the port cannot be bound, StoreError where the directory cannot be made or written.
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
        self._ranks = RankHolders(
            self.store,
            fsync=fsync,
            max_bytes=max_bytes,
            limits=Limits(runs=max_runs, run_bytes=max_run_bytes, run_files=max_run_files),
            patience=_PATIENCE,
        )
        self.tally = CollectorCounters()
        self._archiver = _archiver(self.store, archiving, self.tally)
        door = TurnedAway(self.tally)
        self._handshakes = Handshakes(door.refuse_handshake)
        self._certificates = None if tls is None else Certificates(tls, self._handshakes.watch_new)
        self._refusal_counts = RefusalCounts(self.tally)
        self._gate = Gate(known, door, self._refusal_counts, read_only=read_only)
        self._push = PushService(
            self._ranks,
            self._gate,
            self.tally,
            self._refusal_counts,
            StreamLimits(max_streams, idle_timeout, record_bytes, max_rate),
            fsync=fsync,
        )
        self._health = HealthService()
        self._prefix = f"anchor-collector-{next(_NUMBERS)}"
        self._threads = ThreadPoolExecutor(max_streams + _SPARE_THREADS, self._prefix)
        self._has_ended = False
        self._server = self._make_server(max_streams)
        self._handshakes.port = bind_port(self._server, bind, self._certificates)
        self.address = f"{host}:{self._handshakes.port}"
        self._stopped = threading.Event()
        self._stop_lock = threading.Lock()

    def _known(self, token: str | None) -> Access:
        """Returns the rights of callers: those in the access file, or all rights for `token`.

        With neither an access file nor a token every caller has all rights. Raises OptionError
        where both are given.
        """
        if self._access is None:
            return Access.of_token(token)
        if token is not None:
            raise OptionError(
                "a collector takes a token or an access file, not both: leave one out"
            )
        return self._access.read()

    def start(self) -> None:
        """Starts to serve on background threads, and returns at once."""
        keep_memory()
        if not self._gate.read_only:
            # A separate thread, because an interrupted removal may have left terabytes to delete.
            Thread(target=end_removals, args=(self.store,), daemon=True).start()
        self._server.start()
        self._health.say(serving=True)
        if self._access is not None:
            self._access.start()
        if self._archiver is not None:
            self._archiver.start()

    def renew(self, token: str | None = None) -> None:
        """Reads the certificates and the access file again, or replaces the token.

        New certificates serve new connections. Connections and calls that are open go on, except
        streams (Push calls) whose caller the new access file would refuse: those end.

        Raises OptionError for files that cannot be used; what was read before then stays in use.

        token: the new token; None keeps the present token. A collector that was made without a
            token, or with an access file, ignores this argument.
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
        """Waits until the collector has stopped, but at most `timeout` seconds (None: for ever).

        Returns whether the collector has stopped.
        """
        return self._stopped.wait(timeout)

    def stop(self, grace: float = 10.0, *, readers: bool = False) -> None:
        """Writes and acknowledges records that have arrived, then ends all calls and the server.

        Blocks until that is done. Each rank is published, so that any zarr reader sees all of its
        records. Until calls end, readers are answered, and the health service says NOT_SERVING.
        After `grace` seconds calls that are still open are cancelled. A second call of `stop` waits
        for the first and does nothing.

        readers: whether to wait also for readers, who fetch a run in many calls: until none of them
            has called for two seconds, but no longer than `grace` in all.
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
        """Waits until no stream (Push call) holds a rank, then stops the archiver's thread.

        The archiver gets at most 5 seconds of that time. A run whose archiving is interrupted here
        is completed by the next collector of this store.

        over: when to stop waiting, as `time.monotonic()` counts.
        """
        if self._archiver is not None:
            self._archiver.end()
        self._ranks.wait_idle(over - time.monotonic())
        if self._archiver is not None:
            self._archiver.stop(min(max(over - time.monotonic(), 0.0), _ARCHIVING))

    @property
    def has_ended(self) -> bool:
        """Whether `stop` was called and all threads that answer calls have ended.

        After `stop`, the value is False where a call did not end although it was cancelled. All
        acknowledged records are in the store either way, but Python waits for that call's thread
        when the process ends.
        """
        return self._has_ended

    def _join(self, seconds: float) -> bool:
        """Waits at most `seconds` for the threads that answer calls.

        Returns whether all of them have ended.
        """
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
        watched = (
            [] if self._certificates is None else [CallStartInterceptor(self._handshakes.called)]
        )
        handlers = [
            push_handler(self._push.push),
            KeeperService(self.store, self.tally, self._refusal_counts, self._gate).handler,
            ReaderService(self.store, self.tally, self._refusal_counts, self._gate).handler,
        ]
        interceptors = [*watched, self._gate]
        server = make_server(self._threads, handlers, interceptors, max_streams + _SPARE_THREADS)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        return server


@contextmanager
def serve(store: Path | str, bind: str = "127.0.0.1:0", **settings: Any) -> Iterator[Collector]:
    """Starts a collector and yields it; stops it when the context ends.

    Raises OptionError, CollectorError or StoreError where the collector cannot be made.

    bind: host:port; port 0 picks a free port. settings: further keyword arguments of `Collector`.
    """
    with Collector(store, bind, **settings) as collector:
        yield collector


def _archiver(
    store: Path, archiving: Archiving | None, tally: CollectorCounters
) -> Archiver | None:
    if archiving is None:
        return None
    tally.archive = ArchiveTally(archiving.shelf.place)
    return Archiver(store, archiving, tally.archive)
