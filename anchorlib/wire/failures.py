"""What a failed call means: try again, or give up; and the sentence that says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import grpc

from anchorlib.names import escape
from anchorlib.wire.address import Address

__all__ = ["STOPPING", "Failure", "failure"]

STOPPING: Final = "the collector is stopping"
"""How a collector begins the details of the calls that it ends because it stops."""

_PERMANENT: Final = frozenset(
    {
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
_SILENT: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
_PASSING: Final = _SILENT | {
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
}


_BROKEN: Final = "Stream removed"
"""How gRPC begins what it says of a connection that broke, or that made no sense any more."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed call.

    sentence: what, where, and what to do, in one line.
    permanent: the collector refused, and will refuse again.
    passing: it may pass by itself, however often it comes.
    told: the other end, or what seemed to be it, said so.
    """

    sentence: str
    permanent: bool = False
    passing: bool = False
    told: bool = False


def failure(address: Address, error: grpc.RpcError) -> Failure:
    """Reads the error of a call to the collector at `address`."""
    code, details = error.code(), error.details() or ""
    details = escape(" ".join(details.split())[:500])
    broken = details.startswith(_BROKEN) and code not in _PERMANENT
    return Failure(
        _sentence(address, code, details), code in _PERMANENT, broken or code in _PASSING, told=True
    )


def _sentence(address: Address, code: grpc.StatusCode, details: str) -> str:
    if details.startswith(STOPPING):
        return f"{details} ({address})"
    if code in _SILENT:
        if mistake := _mistake(address, details):
            return f"cannot talk to the collector at {address}: {mistake}"
        return (
            f"no collector answers at {address} ({_cause(details)}); is `anchor serve` running "
            "there, and is the address right?"
        )
    if details.startswith(_BROKEN) or code == grpc.StatusCode.DATA_LOSS:
        return f"the line to {address} is bad: {details or code.name}"
    if code == grpc.StatusCode.UNAUTHENTICATED:
        details += "; set ANCHOR_TOKEN or ANCHOR_TOKEN_FILE"
    if code == grpc.StatusCode.UNIMPLEMENTED:
        details = "what answers there is no collector of this protocol"
    return f"the collector at {address} refused: {details or code.name}"


def _mistake(address: Address, details: str) -> str:
    """What is wrong between two ends that could reach each other; "" where that is not it."""
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
# All that a client sees where the other end refuses its way of beginning: no reason comes with it.
_HUNG_UP: Final = {
    False: "it hung up at once; if it speaks TLS, write grpcs://{target}",
    True: "it hung up in the TLS handshake; if it asks for certificates, set ANCHOR_CLIENT_CERT "
    "and ANCHOR_CLIENT_KEY to one that it accepts and that has not expired",
}


def _cause(details: str) -> str:
    """gRPC's own words, where there are none that people use."""
    for sign, words in (
        ("Connection refused", "connection refused"),
        ("DNS resolution failed", "its name is unknown"),
        ("Deadline Exceeded", "no answer in time"),
    ):
        if sign in details:
            return words
    return details or "no reason given"
