"""Clusters of dask."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Clusters are started and ended."""
    item.add_marker(pytest.mark.slow)
