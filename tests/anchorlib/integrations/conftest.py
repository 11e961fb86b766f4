"""What other libraries' trainers record."""

from __future__ import annotations

from tests.slow import left_out, marked_slow

# Trainers of others are imported, and run as processes.
pytest_itemcollected, pytest_ignore_collect = marked_slow, left_out
