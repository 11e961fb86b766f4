"""The one door that every call comes through: who calls, and whether he may.

A call needs what `CALLS` says; one that does not stand there is refused, whoever calls it. The door
knows the name of a call alone: which run it is about stands in its messages, so the services ask
`Gate.check` once they have read that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final, NoReturn

import grpc

from anchor_server.access import Access, Grant, Right
from anchor_server.door import Door
from anchor_server.handlers import Handler, behind
from anchor_server.readers import Readers
from anchor_server.refusals import Refusal, abort
from anchor_server.trouble import Caller, Trouble
from anchorlib.wire import Kind

__all__ = ["CALLS", "Gate", "Open"]


class Open(Enum):
    """Calls that need no right. KNOWN: of whoever shows a token or certificate that is known."""

    ANYONE = "anyone"
    KNOWN = "known"


CALLS: Final[Mapping[str, Right | Open]] = {
    "/grpc.health.v1.Health/Check": Open.ANYONE,
    "/grpc.health.v1.Health/Watch": Open.KNOWN,  # it holds a thread for whoever asks
    "/anchorlib.wire.v1.Reader/Get": Right.READ,
    "/anchorlib.wire.v1.Reader/List": Right.READ,
    "/anchorlib.wire.v1.Collector/Push": Right.WRITE,
    "/anchorlib.wire.v1.Keeper/Status": Right.READ,  # of the runs that may be read
    "/anchorlib.wire.v1.Keeper/Measure": Right.READ,
    "/anchorlib.wire.v1.Keeper/Remove": Right.DELETE,
    "/anchorlib.wire.v1.Keeper/Rename": Right.DELETE,
}
"""Every call of a collector and what it needs."""

_BEARER: Final = "Bearer "
_READ_ONLY: Final = (
    "it is read-only just now: until that is over it takes, removes and renames nothing"
)


class Gate(grpc.ServerInterceptor):
    """Lets calls in, as `access` says at that moment.

    readers: hears of each call that reads. read_only: no other call on a run is let in.
    """

    def __init__(
        self, access: Access, door: Door, trouble: Trouble, *, read_only: bool = False
    ) -> None:
        self.access = access
        self.readers = Readers()
        self.read_only = read_only
        self._door = door
        self._trouble = trouble

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The call's own handler, behind a look at who calls."""
        handler = continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            # Only those who may come in are told that there is no such call.
            return grpc.stream_stream_rpc_method_handler(self._unknown)
        return behind(handler, partial(self._admit, method))

    def grant(self, context: grpc.ServicerContext) -> Grant:
        """Of whoever makes this call, at this moment. Raises a Refusal where nobody knows him."""
        found = self.access.of_shown(_token(context), _certificate(context))
        if found is None:
            raise Refusal(Kind.TOKEN, "the token is missing or wrong")
        return found

    def name(self, context: grpc.ServicerContext) -> str:
        """Under which whoever makes this call is known, "" where he is not."""
        found = self.access.of_shown(_token(context), _certificate(context))
        return "" if found is None else found.name

    def check(self, context: grpc.ServicerContext, right: Right, run: str | None) -> Grant:
        """The grant of whoever makes this call, which has this right to that run, else Refusal."""
        grant = self.grant(context)
        if not grant.may(right, run):
            what = f"run '{run}'" if run is not None else "what belongs to no run"
            raise _lacking(grant, right, what)
        if self.read_only and right is not Right.READ:
            raise Refusal(Kind.READ_ONLY, _READ_ONLY)
        return grant

    def _admit(self, method: str, context: grpc.ServicerContext) -> None:
        need = CALLS.get(method)
        if need is Open.ANYONE:
            return
        grant = self._known(context)
        if need is None:
            self._refuse(context, grant, Refusal(Kind.FORBIDDEN, f"nobody has a right to {method}"))
        if isinstance(need, Right) and need not in grant.rights:
            self._refuse(context, grant, _lacking(grant, need, "any run"))
        if need is Right.READ:
            self.readers.hear()

    def _known(self, context: grpc.ServicerContext) -> Grant:
        try:
            return self.grant(context)
        except Refusal as refusal:
            self._door.refuse_token(context.peer())
            abort(context, refusal)

    def _unknown(self, request: Any, context: grpc.ServicerContext) -> NoReturn:  # noqa: ARG002  # not looked at
        self._known(context)
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no such call")
        raise AssertionError("grpc's abort raises")

    def _refuse(self, context: grpc.ServicerContext, grant: Grant, refusal: Refusal) -> NoReturn:
        self._trouble.refuse(context, refusal, Caller(context.peer(), identity=grant.name))


def _lacking(grant: Grant, right: Right, what: str) -> Refusal:
    return Refusal(
        Kind.FORBIDDEN,
        f"token '{grant.name}' has no right to {right} {what}; who runs the collector can give "
        "it one",
    )


def _token(context: grpc.ServicerContext) -> bytes | None:
    """The token that a call shows; None where it shows nothing, not even a wrong one."""
    shown = dict(context.invocation_metadata() or ()).get("authorization")
    if shown is None:
        return None
    text = shown if isinstance(shown, str) else shown.decode("latin-1")
    # What is no bearer token is not the right one either.
    return text.removeprefix(_BEARER).encode(errors="replace") if text.startswith(_BEARER) else b""


def _certificate(context: grpc.ServicerContext) -> list[str]:
    """The names in the client's certificate, which the TLS of this port has checked."""
    told: Mapping[str, Iterable[Any]] = context.auth_context()
    return [
        f"{form}:{bytes(name).decode('utf-8', 'replace')}"
        for form, key in (("cn", "x509_common_name"), ("san", "x509_subject_alternative_name"))
        for name in told.get(key, ())
    ]
