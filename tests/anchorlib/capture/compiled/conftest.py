"""Compiled code is forgotten before each test.

What Inductor's code costs is its C++ compiler: more than a second for each kernel. So Inductor
compiles what is about Inductor; what dynamo or AOT autograd decide is tested with their own
backends.
"""

from __future__ import annotations

import pytest
import torch

from tests.slow import left_out, marked_slow

# Compilers take their time.
pytest_itemcollected, pytest_ignore_collect = marked_slow, left_out


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    torch._dynamo.reset()
