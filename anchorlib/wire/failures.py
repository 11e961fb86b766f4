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


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed call.

    sentence: what, where, and what to do, in one line.
    permanent: the collector refused, and will refuse again.
    passing: it may pass by itself, however often it comes.
    """

    sentence: str
    permanent: bool = False
    passing: bool = False


def failure(address: Address, error: grpc.RpcError) -> Failure:
    """Reads the error of a call to the collector at `address`."""
    code, details = error.code(), error.details() or ""
    details = escape(" ".join(details.split())[:500])
    return Failure(_sentence(address, code, details), code in _PERMANENT, code in _PASSING)


def _sentence(address: Address, code: grpc.StatusCode, details: str) -> str:
    if details.startswith(STOPPING):
        return f"{details} ({address})"
    if code in _SILENT:
        return (
            f"no collector answers at {address} ({_cause(details)}); is `anchor serve` running "
            "there, and is the address right?"
        )
    if code == grpc.StatusCode.UNAUTHENTICATED:
        details += "; set ANCHOR_TOKEN or ANCHOR_TOKEN_FILE"
    if code == grpc.StatusCode.UNIMPLEMENTED:
        details = "what answers there is no collector of this protocol"
    return f"the collector at {address} refused: {details or code.name}"


def _cause(details: str) -> str:
    """gRPC's own words, where there are none that people use."""
    for sign, words in (
        ("Connection refused", "connection refused"),
        ("DNS resolution failed", "its name is unknown"),
        ("Deadline Exceeded", "no answer in time"),
        ("andshake", "the TLS handshake failed"),
        ("CERTIFICATE_VERIFY_FAILED", "its certificate is not trusted"),
    ):
        if sign in details:
            return words
    return details or "no reason given"
