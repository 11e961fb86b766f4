"""A bench for each test.

bench   programs run in a Python of their own
warm    they run in one that has torch loaded: where it does not matter how Python starts
typed   `anchor` is a process too: where it matters that the command takes its place
"""

from __future__ import annotations

import pytest

from tests.anchorlib.launch.launching import Bench
from tests.slow import left_out, marked_slow
from tests.warm import warm_python

# Programs run as processes of their own.
pytest_itemcollected, pytest_ignore_collect = marked_slow, left_out


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.fixture
def warm(tmp_path):
    return Bench(tmp_path, warm_python())


@pytest.fixture
def typed(tmp_path):
    return Bench(tmp_path, typed=True)
