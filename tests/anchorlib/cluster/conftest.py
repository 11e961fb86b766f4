"""Clusters of dask."""

from __future__ import annotations

from tests.slow import left_out, marked_slow

# Clusters are started and ended.
pytest_itemcollected, pytest_ignore_collect = marked_slow, left_out
