"""The standard health service, `grpc.health.v1`.

A client asks for the state once with Check, or is told of each change with Watch. The service is
written here because of a fault in the package grpcio-health-checking: there a client of Watch that
hangs up at the wrong moment leaves a lock held, after which no check is answered. Each client of
Watch holds a thread, so their number is limited here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

__all__ = ["WATCHERS", "HealthService"]

WATCHERS: Final = 8

_Reply = health_pb2.HealthCheckResponse
_SERVICES: Final = ("", "anchorlib.wire.v1.Collector", "anchorlib.wire.v1.Reader")


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # has no types
    """Tells clients whether the collector serves: SERVING or NOT_SERVING, as a whole.

    A client may ask for the empty name, or for the services Collector or Reader: the answer is the
    same. The state is NOT_SERVING until `say(serving=True)`.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._serving = False
        self._over = False
        self._watchers = 0

    def say(self, *, serving: bool) -> None:
        """Sets whether the collector serves, and sends that to all clients of Watch."""
        with self._changed:
            self._serving = serving
            self._changed.notify_all()

    def end(self) -> None:
        """Makes all Watch calls end, each once the last state was sent; returns at once."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def Check(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Answers a Check call with the present state.

        A call for an unknown service is aborted with NOT_FOUND.
        """
        if request.service not in _SERVICES:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return _reply(self._serving)

    def Watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        """Answers a Watch call with the state now, and again at each change.

        An unknown service is answered with SERVICE_UNKNOWN. While eight Watch calls are open, a
        further one is refused with RESOURCE_EXHAUSTED.
        """
        if request.service not in _SERVICES:
            yield _Reply(status=_Reply.SERVICE_UNKNOWN)
            return
        with self._changed:
            full = self._watchers >= WATCHERS
            self._watchers += not full
        if full:
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{WATCHERS} watch already; use Check"
            )
        try:
            yield from self._states(context)
        finally:
            with self._changed:
                self._watchers -= 1

    def _states(self, context: grpc.ServicerContext) -> Iterator[Any]:
        context.add_callback(self._wake)
        last = None
        while context.is_active() and not (self._over and last == self._serving):
            if last == self._serving:
                with self._changed:
                    # At most a second, because the client may have hung up, and `_wake` been
                    # called, before this thread began to wait.
                    self._changed.wait(1.0)
                continue
            last = self._serving
            yield _reply(last)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _reply(serving: bool) -> Any:  # noqa: FBT001  # its only argument
    return _Reply(status=_Reply.SERVING if serving else _Reply.NOT_SERVING)
