"""What a hostile run, client or server can do."""

from __future__ import annotations

from tests.slow import left_out, marked_slow

# Servers, processes and spoilt files by the hundred.
pytest_itemcollected, pytest_ignore_collect = marked_slow, left_out
