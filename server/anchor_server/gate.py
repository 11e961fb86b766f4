"""The gate: an interceptor that checks for every gRPC call whether its caller has the right to it.

`CALLS` says which right each call needs; a call that is not in `CALLS` is refused to everyone. The
gate sees only the name of a call: the run is named in the call's messages, so each service asks
`Gate.check` once it has read the run's name. The module `tokens` has the rights and runs of each
token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final, NoReturn

import grpc

from anchor_server.handlers import Handler, behind
from anchor_server.last_readers import Readers
from anchor_server.refusal_counts import Caller, RefusalCounts
from anchor_server.refusals import Refusal, abort
from anchor_server.tokens import Access, Grant, Right
from anchor_server.turned_away import TurnedAway
from anchorlib.wire import FailureKind

__all__ = ["CALLS", "Gate", "Open"]


class Open(Enum):
    """What a gRPC call demands of its caller where it demands no particular right.

    ANYONE: nothing. KNOWN: a known token or certificate, with whatever rights.
    """

    ANYONE = "anyone"
    KNOWN = "known"


CALLS: Final[Mapping[str, Right | Open]] = {
    "/grpc.health.v1.Health/Check": Open.ANYONE,
    "/grpc.health.v1.Health/Watch": Open.KNOWN,  # each watcher holds a thread
    "/anchorlib.wire.v1.Reader/Get": Right.READ,
    "/anchorlib.wire.v1.Reader/List": Right.READ,
    "/anchorlib.wire.v1.Collector/Push": Right.WRITE,
    "/anchorlib.wire.v1.Keeper/Status": Right.READ,  # tells only of runs that the caller may read
    "/anchorlib.wire.v1.Keeper/Measure": Right.READ,
    "/anchorlib.wire.v1.Keeper/Remove": Right.DELETE,
    "/anchorlib.wire.v1.Keeper/Rename": Right.DELETE,
}
"""Every call of a collector, by its gRPC name, and the right that it needs."""

_BEARER: Final = "Bearer "
_READ_ONLY: Final = (
    "it is read-only just now: until that is over it takes, removes and renames nothing"
)


class Gate(grpc.ServerInterceptor):
    """Lets a call through where its caller has the right that the call needs, and refuses others.

    access: all tokens with their rights; a new value takes effect with the next call.
    readers: is told of each call that needs the right to read.
    read_only: whether `check` refuses every right but that to read.
    """

    def __init__(
        self,
        access: Access,
        door: TurnedAway,
        refusal_counts: RefusalCounts,
        *,
        read_only: bool = False,
    ) -> None:
        self.access = access
        self.readers = Readers()
        self.read_only = read_only
        self._door = door
        self._refusal_counts = refusal_counts

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Returns the handler of a call, wrapped so that the caller is checked before it runs.

        For a call that the server does not have, the result is a handler that refuses the call.
        """
        handler = continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            # Only callers with a known token are told that there is no such call.
            return grpc.stream_stream_rpc_method_handler(self._unknown)
        return behind(handler, partial(self._admit, method))

    def grant(self, context: grpc.ServicerContext) -> Grant:
        """Returns the rights that a call's caller has now; raises a Refusal for unknown callers."""
        grant = self.access.of_shown(_token(context), _certificate(context))
        if grant is None:
            raise Refusal(FailureKind.TOKEN, "the token is missing or wrong")
        return grant

    def name(self, context: grpc.ServicerContext) -> str:
        """Returns the name that the access file gives to a call's token or certificate.

        Returns "" for a caller that is not known, and where there is no access file.
        """
        grant = self.access.of_shown(_token(context), _certificate(context))
        return "" if grant is None else grant.name

    def check(self, context: grpc.ServicerContext, right: Right, run: str | None) -> Grant:
        """Checks that the caller of a call has `right` to `run`; returns all rights of the caller.

        Raises a Refusal for an unknown caller, for a caller without that right, and for any right
        but that to read while the collector is read-only.

        run: the run's name; None stands for files that belong to no run.
        """
        grant = self.grant(context)
        if not grant.may(right, run):
            what = f"run '{run}'" if run is not None else "what belongs to no run"
            raise _lacking(grant, right, what)
        if self.read_only and right is not Right.READ:
            raise Refusal(FailureKind.READ_ONLY, _READ_ONLY)
        return grant

    def _admit(self, method: str, context: grpc.ServicerContext) -> None:
        need = CALLS.get(method)
        if need is Open.ANYONE:
            return
        grant = self._known(context)
        if need is None:
            self._refuse(
                context, grant, Refusal(FailureKind.FORBIDDEN, f"nobody has a right to {method}")
            )
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

    def _unknown(self, request: Any, context: grpc.ServicerContext) -> NoReturn:  # noqa: ARG002  # gRPC's form
        self._known(context)
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no such call")
        raise AssertionError("grpc's abort raises")

    def _refuse(self, context: grpc.ServicerContext, grant: Grant, refusal: Refusal) -> NoReturn:
        self._refusal_counts.refuse(context, refusal, Caller(context.peer(), identity=grant.name))


def _lacking(grant: Grant, right: Right, what: str) -> Refusal:
    return Refusal(
        FailureKind.FORBIDDEN,
        f"token '{grant.name}' has no right to {right} {what}; who runs the collector can give "
        "it one",
    )


def _token(context: grpc.ServicerContext) -> bytes | None:
    """Returns the token in a call's authorization header; None where there is no such header.

    Returns b"", which no token equals, for a header that holds no bearer token ("Bearer TOKEN").
    """
    shown = dict(context.invocation_metadata() or ()).get("authorization")
    if shown is None:
        return None
    text = shown if isinstance(shown, str) else shown.decode("latin-1")
    # A header that holds no bearer token counts as a wrong token, not as a missing one.
    return text.removeprefix(_BEARER).encode(errors="replace") if text.startswith(_BEARER) else b""


def _certificate(context: grpc.ServicerContext) -> list[str]:
    """Returns the names in the client's certificate; [] where the client shows none.

    A common name is written "cn:NAME", an alternative name "san:NAME". TLS has checked the
    certificate's signature before.
    """
    properties: Mapping[str, Iterable[Any]] = context.auth_context()
    return [
        f"{form}:{bytes(name).decode('utf-8', 'replace')}"
        for form, key in (("cn", "x509_common_name"), ("san", "x509_subject_alternative_name"))
        for name in properties.get(key, ())
    ]
