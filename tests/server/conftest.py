"""The collector."""

from __future__ import annotations

from tests.slow import left_out, marked_slow

# Servers are started and ended.
pytest_itemcollected, pytest_ignore_collect = marked_slow, left_out
