"""What a failed call means: its kind, for programs, and a sentence, for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from anchorlib.errors import CollectorError
from anchorlib.names import escape
from anchorlib.wire.address import Address
from anchorlib.wire.connection.failure_kinds import FailureKind, kind_of
from anchorlib.wire.connection.loading import grpc

__all__ = ["Failure", "failure"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call to a collector failed.

    kind: the kind of failure, by which programs decide what to do.
    sentence: what failed, where, and what to do, in one line.
    """

    kind: FailureKind
    sentence: str

    def error(self) -> CollectorError:
        """Return this failure as an exception to raise; its attribute `kind` is the kind."""
        error = CollectorError(self.sentence)
        error.kind = self.kind
        return error


def failure(address: Address, error: grpc.RpcError) -> Failure:
    """Return the kind and a sentence for gRPC's error of a call to the collector `address`."""
    kind = kind_of(error)
    details = escape(" ".join((error.details() or "").split())[:500])
    return Failure(kind, _sentence(address, kind, details or error.code().name))


def _sentence(address: Address, kind: FailureKind, details: str) -> str:
    if kind is FailureKind.STOPPING:
        return f"{details} ({address})"
    if kind is FailureKind.UNREACHABLE:
        # gRPC gives every failed connection one status code; its words alone tell the causes apart.
        if mistake := _mistake(address, details):
            return f"cannot talk to the collector at {address}: {mistake}"
        return (
            f"no collector answers at {address} ({_cause(details)}); is `anchor serve` running "
            "there, and is the address right?"
        )
    if kind in (FailureKind.LINE, FailureKind.DAMAGED):
        return f"the line to {address} is bad: {details}"
    if kind is FailureKind.TOKEN:
        details += "; set ANCHOR_TOKEN or ANCHOR_TOKEN_FILE"
    if kind is FailureKind.FOREIGN:
        details = "what answers there is no collector of this protocol"
    return f"the collector at {address} refused: {details}"


def _mistake(address: Address, details: str) -> str:
    """Return which mistake in TLS or certificates explains a failed connection; "" if none does.

    details: gRPC's own words on the failure.
    """
    for sign, words in _TLS_MISTAKES:
        if sign in details:
            return words.format(host=address.host, target=address.target)
    if "failed to connect" in details and "Socket closed" in details:
        return _HUNG_UP[address.tls].format(target=address.target)
    return ""


_TLS_MISTAKES: Final = (
    ("certificate has expired", "its certificate has expired; renew it there"),
    ("certificate is not yet valid", "its certificate is not valid yet; are both clocks right?"),
    ("Hostname Verification", "its certificate is for another host than {host}"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "its certificate is not trusted here; set ANCHOR_CA_FILE to the file of who signed it",
    ),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS; write grpc://{target} if that is meant to be"),
    ("andshake failed", "the TLS handshake failed"),
)
# A server that rejects a client's TLS, or its lack of TLS, hangs up without a reason: we guess it.
_HUNG_UP: Final = {
    False: "it hung up at once; if it speaks TLS, write grpcs://{target}",
    True: "it hung up in the TLS handshake; if it asks for certificates, set ANCHOR_CLIENT_CERT "
    "and ANCHOR_CLIENT_KEY to one that it accepts and that has not expired",
}


def _cause(details: str) -> str:
    """Return in a few words why the collector does not answer.

    details: gRPC's own words on the failure; returned as they are if they give no known reason.
    """
    for sign, words in (
        ("Connection refused", "connection refused"),
        ("DNS resolution failed", "its name is unknown"),
        ("Deadline Exceeded", "no answer in time"),
    ):
        if sign in details:
            return words
    return details
