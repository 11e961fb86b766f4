"""What trainer and recorder say to each other arrives as it was said."""

from __future__ import annotations

import pytest

from anchorlib.errors import CollectorError, FlushTimeoutError, QueueFullError, StoreError
from anchorlib.recorder.process_messages import encoded_fault, fault_of


@pytest.mark.parametrize("cls", [CollectorError, FlushTimeoutError, QueueFullError, StoreError])
def test_a_fault_of_ours_arrives_as_what_it_was(cls):
    heard = fault_of(encoded_fault(cls("no room")))
    assert (type(heard), str(heard)) == (cls, "no room")


def test_a_refusal_says_its_kind():
    refused = CollectorError("many streams")
    refused.kind = "streams"
    heard = fault_of(encoded_fault(refused))
    assert isinstance(heard, CollectorError)
    assert heard.kind == "streams"


def test_any_other_fault_is_the_stores_and_says_what_it_was():
    heard = fault_of(encoded_fault(ZeroDivisionError("by zero")))
    assert (type(heard), str(heard)) == (StoreError, "ZeroDivisionError: by zero")
