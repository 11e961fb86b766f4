"""Every test here starts from an environment that says nothing, and from an empty store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SPEAKING = ("ANCHOR_", "TORCHELASTIC_", "SLURM_")


@pytest.fixture(autouse=True)
def silent_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(SPEAKING) or name == "RANK":
            monkeypatch.delenv(name)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "anchors"
