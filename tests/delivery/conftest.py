"""Spools of these tests go where the tests' other files go."""

from __future__ import annotations

import pytest

from tests.slow import left_out, marked_slow

# Processes are killed, and wait for each other.
pytest_itemcollected, pytest_ignore_collect = marked_slow, left_out


@pytest.fixture(autouse=True)
def _own_spools(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHOR_SPOOL", str(tmp_path / "spools"))
