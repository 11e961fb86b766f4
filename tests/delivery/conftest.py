"""Spools of these tests go where the tests' other files go."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Processes are killed, and wait for each other."""
    item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _own_spools(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHOR_SPOOL", str(tmp_path / "spools"))
