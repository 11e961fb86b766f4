"""Each promise of docs/delivery.md names tests, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/delivery.md").read_text(encoding="utf-8")
PROMISES = [
    line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| What")
]


def test_every_promise_names_a_test():
    assert len(PROMISES) > 30
    assert not [line for line in PROMISES if not re.search(r"`tests/[^`]+::test_", line)]


def test_every_test_that_is_named_exists():
    missing = []
    for path, name in re.findall(r"`(tests/[^`:]+)::(test_\w+)`", PAGE):
        file = ROOT / path
        if not file.exists() or f"def {name}(" not in file.read_text(encoding="utf-8"):
            missing.append(f"{path}::{name}")
    assert not missing
