"""Turns errors into what a client sees: a kind, its gRPC status code and one line of text."""

from __future__ import annotations

import logging
from typing import Final, NoReturn

import grpc

from anchorlib.errors import AnchorError, RunBusyError, RunExistsError, StoreError
from anchorlib.store import RunFilesError
from anchorlib.wire import KIND_KEY, FailureKind, GarbledError, code_of

__all__ = ["Refusal", "abort", "refusal_of"]

_TEXT = 500  # characters of the text: gRPC sends it in a header, whose size is limited

_log = logging.getLogger("anchor_server")

_KINDS: Final[tuple[tuple[type[Exception], FailureKind], ...]] = (
    (RunExistsError, FailureKind.EXISTS),
    (RunBusyError, FailureKind.BUSY),
    (GarbledError, FailureKind.DAMAGED),
    (MemoryError, FailureKind.MEMORY),
    (OSError, FailureKind.DISK),
    (AnchorError, FailureKind.INVALID),
)


class Refusal(Exception):  # noqa: N818  # it is an answer, not a fault
    """An error that ends a gRPC call: the client gets the error's kind, and its text as one line.

    kind: which refusal it is, by which clients decide whether to try again.
    """

    def __init__(self, kind: FailureKind, text: str) -> None:
        super().__init__(kind, text)
        self.kind = kind
        self.text = " ".join(text[:_TEXT].split())


def abort(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    """Ends a gRPC call with the status code, the kind and the text of the refusal for an error.

    Never returns: gRPC raises an exception of its own here.

    context: gRPC's object for the call.
    """
    refusal = refusal_of(error)
    context.set_trailing_metadata(((KIND_KEY, refusal.kind.value),))
    context.abort(code_of(refusal.kind), refusal.text)
    raise AssertionError("grpc's abort raises")


def refusal_of(error: Exception) -> Refusal:
    """Returns the Refusal that answers a call which has raised `error`.

    An unexpected error, which is a defect of anchorlib, is logged, and its text is not sent.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error.__cause__, RunFilesError):
        return Refusal(FailureKind.INODES, f"{error} (max_run_inodes)")
    if isinstance(error, StoreError) and not isinstance(error.__cause__, OSError):
        # A damaged store stays damaged, so the client gives up. An OSError as a full disk passes,
        # and the client tries again.
        return Refusal(FailureKind.STORE, str(error))
    for of, kind in _KINDS:
        if isinstance(error, of):
            return Refusal(kind, str(error) or of.__name__)
    _log.error("the collector failed", exc_info=error)
    return Refusal(FailureKind.DEFECT, f"{type(error).__name__} in the collector: see its log")
