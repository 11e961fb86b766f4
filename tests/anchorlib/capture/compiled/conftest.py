"""Compiled code is forgotten before each test, and cached where no other run finds it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.slow import left_out, marked_slow

# Compilers take their time.
pytest_itemcollected, pytest_ignore_collect = marked_slow, left_out


@pytest.fixture(scope="session", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        patch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # starting a pool takes longer
        yield


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    torch._dynamo.reset()
