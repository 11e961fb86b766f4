"""Folders whose tests are all slow: each is marked, and no file of them is imported in vain.

The conftest of such a folder takes both hooks from here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiers import count


def marked_slow(item: pytest.Item) -> None:
    """Mark a test of the folder; for `pytest_itemcollected`."""
    item.add_marker(pytest.mark.slow)


def left_out(collection_path: Path, config: pytest.Config) -> bool | None:
    """Whether a file of the folder is not collected; for `pytest_ignore_collect`.

    Where `-m` takes no slow test, none of the folder can run: to import browsers, servers and
    compilers, and to make a thousand tests that are then left out, takes each worker seconds.
    """
    asked = config.option.markexpr.split()
    alone = "or" not in asked  # "a or b and not slow" takes slow tests that are marked a
    if not alone or "not slow" not in " ".join(asked).split(" and "):
        return None
    if collection_path.match("test_*.py"):
        count(config, "files of slow")
    return True
