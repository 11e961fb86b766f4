"""Compiled code is forgotten before each test, and cached where no other run finds it.

What Inductor's code costs is its C++ compiler: more than a second for each kernel. So Inductor
compiles what is about Inductor; what dynamo or AOT autograd decide is tested with their own
backends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
import torch

from tests.slow import left_out, marked_slow

# Compilers take their time.
pytest_itemcollected, pytest_ignore_collect = marked_slow, left_out


@pytest.fixture(scope="session", autouse=True)
def _cache_of_this_run() -> Iterator[None]:
    """Let the processes of this run compile a kernel once between them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/inductor")
        patch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # starting a pool takes longer
        yield


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    torch._dynamo.reset()
