"""A bench for each test."""

from __future__ import annotations

import pytest

from tests.anchorlib.launch.launching import Bench


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)
