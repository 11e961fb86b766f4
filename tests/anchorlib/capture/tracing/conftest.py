"""Traces say that torch.compile has made code in a process: tests before these may have done so."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def nothing_was_compiled_before() -> None:
    """Let each test begin as a process that has compiled nothing."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters.clear()
