"""What a lock file says of its holder is believed only where it can be read."""

from __future__ import annotations

import os

import pytest

from anchorlib.store.disk.lock import holder


@pytest.mark.parametrize(
    "said", ["", "{", "[" * 4096, "5", '{"pid": 1e999, "host": "a"}', '{"pid": "x", "host": "a"}']
)
def test_a_lock_that_says_nothing_is_held_by_another_process(tmp_path, said):
    lock = tmp_path / "lock"
    lock.write_text(said)
    descriptor = os.open(lock, os.O_RDONLY)
    try:
        assert holder(descriptor) == "another process"
    finally:
        os.close(descriptor)
