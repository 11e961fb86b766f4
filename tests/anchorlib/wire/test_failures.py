"""What a failed call means: a line that breaks is no refusal, whatever its broken pieces say."""

from __future__ import annotations

import grpc
import pytest

from anchorlib.wire.address import parse_address
from anchorlib.wire.failures import failure

ADDRESS = parse_address("grpc://127.0.0.1:50051")
BROKEN = "Stream removed (Failed parsing HTTP/2 (frame of size 70000))"


class Ended(grpc.RpcError):
    """A call that ended with a code and details."""

    def __init__(self, code, details):
        super().__init__()
        self._code, self._details = code, details

    def code(self):
        return self._code

    def details(self):
        return self._details


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
def test_a_connection_that_breaks_passes_and_is_no_refusal(code):
    found = failure(ADDRESS, Ended(code, BROKEN))
    assert found.passing
    assert not found.permanent
    assert "the line to grpc://127.0.0.1:50051 is bad" in found.sentence


def test_a_damaged_message_is_the_lines_fault():
    found = failure(ADDRESS, Ended(grpc.StatusCode.DATA_LOSS, "a message was damaged"))
    assert not found.permanent
    assert "refused" not in found.sentence


@pytest.mark.parametrize("code", [grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.UNAUTHENTICATED])
def test_a_collector_that_refuses_is_believed(code):
    found = failure(ADDRESS, Ended(code, "no"))
    assert found.permanent
    assert "refused: no" in found.sentence
