"""What a failed call means: a line that breaks is no refusal, whatever its broken pieces say."""

from __future__ import annotations

import copy
from typing import NamedTuple

import grpc
import pytest

from anchorlib.wire.address import parse_address
from anchorlib.wire.connection.failure_kinds import KIND_KEY, FailureKind, code_of
from anchorlib.wire.connection.failures import failure

ADDRESS = parse_address("grpc://127.0.0.1:50051")
BROKEN = "Stream removed (Failed parsing HTTP/2 (frame of size 70000))"


class Told(NamedTuple):
    """An entry of a call's metadata."""

    key: str
    value: str


class Ended(grpc.RpcError):
    """A call that ended with a code and details, and perhaps a kind."""

    def __init__(self, code, details, kind=None):
        super().__init__()
        self._code, self._details = code, details
        self._trailing = () if kind is None else (Told("date", "today"), Told(KIND_KEY, kind))

    def code(self):
        return self._code

    def details(self):
        return self._details

    def trailing_metadata(self):
        return self._trailing


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
def test_a_connection_that_breaks_passes_and_is_no_refusal(code):
    found = failure(ADDRESS, Ended(code, BROKEN))
    assert found.kind.passing
    assert not found.kind.permanent
    assert "the line to grpc://127.0.0.1:50051 is bad" in found.sentence


def test_a_damaged_message_is_the_lines_fault():
    found = failure(ADDRESS, Ended(grpc.StatusCode.DATA_LOSS, "a message was damaged"))
    assert not found.kind.permanent
    assert "refused" not in found.sentence


@pytest.mark.parametrize("code", [grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.UNAUTHENTICATED])
def test_a_collector_that_refuses_is_believed(code):
    found = failure(ADDRESS, Ended(code, "no"))
    assert found.kind.permanent
    assert "refused: no" in found.sentence


SAID = [
    kind
    for kind in FailureKind
    if kind not in (FailureKind.FOREIGN, FailureKind.HERE, FailureKind.UNREACHABLE)
]
SAID = [kind for kind in SAID if kind not in (FailureKind.SILENT, FailureKind.LINE)]
"""What a collector may say; the others are what this end sees."""


@pytest.mark.parametrize("kind", SAID)
@pytest.mark.parametrize(
    "details", ["", "is being written by", "Stream removed", "the collector is"]
)
def test_the_kind_that_is_told_counts_whatever_the_words_are(kind, details):
    assert failure(ADDRESS, Ended(code_of(kind), details, kind.value)).kind is kind


@pytest.mark.parametrize("kind", ["no such kind", "", "token"])
def test_a_kind_that_is_unknown_or_does_not_fit_its_code_leaves_the_code(kind):
    found = failure(ADDRESS, Ended(grpc.StatusCode.ALREADY_EXISTS, "no", kind))
    assert found.kind is FailureKind.EXISTS


def test_no_kind_is_both_permanent_and_passing():
    assert [kind for kind in FailureKind if kind.permanent and kind.passing] == []
    assert all(kind.passing for kind in FailureKind if kind.full)


def test_an_error_carries_its_kind_through_a_pickle():
    error = failure(ADDRESS, Ended(grpc.StatusCode.ALREADY_EXISTS, "no")).error()
    assert copy.copy(error).kind == "exists"
    assert str(copy.copy(error)) == str(error)
