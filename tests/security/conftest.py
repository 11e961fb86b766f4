"""What a hostile run, client or server can do."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Servers, processes and spoilt files by the hundred."""
    item.add_marker(pytest.mark.slow)
