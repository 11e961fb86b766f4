"""What other libraries' trainers record."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Trainers of others are imported, and run as processes."""
    item.add_marker(pytest.mark.slow)
