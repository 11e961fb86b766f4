"""Errors as a client sees them: a status code and one line."""

from __future__ import annotations

import logging
from typing import Final, NoReturn

import grpc

from anchorlib.errors import AnchorError, RunBusyError, RunExistsError, StoreError
from anchorlib.wire import DamagedError

__all__ = ["Refusal", "abort", "status"]

_TEXT = 500  # characters of an answer: it travels in a header

_log = logging.getLogger("anchor_server")

_CODES: Final[tuple[tuple[type[Exception], grpc.StatusCode], ...]] = (
    (RunExistsError, grpc.StatusCode.ALREADY_EXISTS),
    (RunBusyError, grpc.StatusCode.FAILED_PRECONDITION),
    (DamagedError, grpc.StatusCode.DATA_LOSS),
    (MemoryError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (OSError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (AnchorError, grpc.StatusCode.INVALID_ARGUMENT),
)


class Refusal(Exception):  # noqa: N818  # it is an answer, not a fault
    """A call is answered with `code` and `text`."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


def abort(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    """End the call with what `error` means."""
    code, text = status(error)
    context.abort(code, " ".join(text[:_TEXT].split()))
    raise AssertionError("grpc's abort raises")


def status(error: Exception) -> tuple[grpc.StatusCode, str]:
    """The code and the words that a client is answered."""
    if isinstance(error, Refusal):
        return error.code, error.text
    if isinstance(error, StoreError) and not isinstance(error.__cause__, OSError):
        # The store is not what it should be, which does not pass; a full disk does.
        return grpc.StatusCode.FAILED_PRECONDITION, str(error)
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code, str(error) or kind.__name__
    _log.error("the collector failed", exc_info=error)
    return grpc.StatusCode.INTERNAL, f"{type(error).__name__} in the collector: see its log"
