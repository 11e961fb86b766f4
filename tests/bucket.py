"""An object store on loopback, behind a proxy that counts requests and makes them fail."""

from __future__ import annotations

import atexit
import http.client
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from moto.backends import get_backend
from moto.core import DEFAULT_ACCOUNT_ID
from moto.server import ThreadedMotoServer

from anchorlib.store.objects import RequestLimits, connection

__all__ = ["HASTY", "Line", "Trouble", "object_store", "put_inside"]

Trouble = str
"""How a request goes wrong, see `Line`."""

HASTY = RequestLimits(request=0.5, connect=0.5, again=1, retrying=2.0)
"""Limits of time under which a test of a store that does not answer is over in a moment."""

_PATIENT = RequestLimits(request=20.0, connect=20.0, again=1, retrying=60.0)

_CONDITIONS = ("if-none-match", "if-match")
_OWN = ("host", "connection", "transfer-encoding", "content-length")


class Line(ThreadingHTTPServer):
    """A proxy that passes requests on to an object store.

    asked: each request as (method, path with question), in order.
    trouble: returns for a request what goes wrong with it, if anything:
        "503"   the request is refused, and not passed on
        "stall" the answer begins and does not go on
        "cut"   half of the answer comes, then the connection ends
        "lost"  the request is carried out, but its answer never comes
        "blind" conditions are removed from the request, as by a store that does not know them
    """

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = port
        self.asked: list[tuple[str, str]] = []
        self.trouble: Callable[[str, str], Trouble | None] = lambda method, path: None
        self.over = threading.Event()

    @property
    def url(self) -> str:
        """The endpoint, as AWS_ENDPOINT_URL has it."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: Line
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms for the acknowledgement of its head

    def do_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.asked.append((self.command, self.path))
        trouble = self.server.trouble(self.command, self.path)
        if trouble == "503":
            self._answer(503, {}, b"<Error><Code>SlowDown</Code></Error>")
            return
        dropped = (*_OWN, *(_CONDITIONS if trouble == "blind" else ()))
        headers = {k: v for k, v in self.headers.items() if k.lower() not in dropped}
        behind = http.client.HTTPConnection("127.0.0.1", self.server.behind)
        behind.request(self.command, self.path, body or None, headers)
        got = behind.getresponse()
        data = got.read()
        behind.close()
        told = {k: v for k, v in got.getheaders() if k.lower() not in ("connection", "date")}
        if trouble == "lost":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(got.status, told, data, trouble)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = do_any  # noqa: N815  # its names

    def _answer(
        self, status: int, headers: dict[str, str], data: bytes, trouble: Trouble | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding"):
                self.send_header(name, value)
        head = self.command == "HEAD"
        length = next((v for k, v in headers.items() if k.lower() == "content-length"), "0")
        self.send_header("content-length", length if head else str(len(data)))
        self.end_headers()
        if head:
            return
        if trouble in ("stall", "cut"):
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            if trouble == "stall":
                self.server.over.wait(30.0)
            self.close_connection = True
            return
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing is said."""


@cache
def _moto() -> ThreadedMotoServer:
    """The server, one for all tests of this process, because it takes a second to start."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    atexit.register(server.stop)
    return server


def _ask(port: int, method: str, path: str) -> None:
    asked = http.client.HTTPConnection("127.0.0.1", port)
    asked.request(method, path)
    asked.getresponse().read()
    asked.close()


def put_inside(bucket: str, objects: Mapping[str, bytes]) -> None:
    """Put objects where the server keeps them, a thousand in a moment, and by no request."""
    inside = get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"]
    for key, data in objects.items():
        inside.put_object(bucket, key, data)


@contextmanager
def object_store(patch: pytest.MonkeyPatch, bucket: str = "anchors") -> Iterator[Line]:
    """An object store with one empty bucket, and the environment that leads to it."""
    line = Line(_moto().get_host_and_port()[1])
    thread = threading.Thread(target=line.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    patch.setenv("AWS_ENDPOINT_URL", line.url)
    patch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFTHETEST")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-the-test")
    patch.setenv("AWS_REGION", "us-east-1")
    patch.setattr(connection, "DEFAULT", _PATIENT)
    try:
        _ask(line.behind, "POST", "/moto-api/reset")
        _ask(line.behind, "PUT", f"/{bucket}")
        yield line
    finally:
        line.over.set()
        line.shutdown()
        thread.join()
        line.server_close()
