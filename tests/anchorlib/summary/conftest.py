"""Both ways to a summary: numpy's, and what `kernels` compiles."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import pytest

from anchorlib.summary import compiled
from tests.scans import loaded_scans


@contextmanager
def path(name):
    """Everything is summarised that way inside, arrays of one element too."""
    with ExitStack() as stack:
        if name == "compiled":
            stack.enter_context(patch.object(compiled, "LEAST", 1))
        of = loaded_scans() if name == "compiled" else compiled.Scans()
        stack.enter_context(patch.object(compiled.SCANS, "_ready", of._ready))
        stack.enter_context(patch.object(compiled.SCANS, "pieces", of.pieces))
        stack.enter_context(patch.object(compiled.SCANS, "fault", "so that none is compiled"))
        yield


@pytest.fixture(scope="module", params=["numpy", pytest.param("compiled", marks=pytest.mark.slow)])
def path_taken(request):
    """A module that uses it runs in both ways; to compile them takes seconds."""
    with path(request.param):
        yield
