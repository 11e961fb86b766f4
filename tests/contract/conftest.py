"""Every test here starts from an environment that says nothing, and leaves no session behind.

But sessions record in a thread, where the test does not ask for a recorder process: to start one
takes half a second of a processor, and there are five hundred tests. `tests/anchorlib/recorder`
proves that both places do the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from anchorlib.capture.sessions.active import active_session

SPEAKING = ("ANCHOR_", "TORCHELASTIC_", "SLURM_")


@pytest.fixture(autouse=True, scope="module")
def silent_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(SPEAKING) or name == "RANK":
                patch.delenv(name)
        patch.setenv("ANCHOR_RECORDER", "thread")
        yield


@pytest.fixture(autouse=True)
def no_session_is_left() -> Iterator[None]:
    """A test that fails inside a session must not fail those after it."""
    yield
    left = active_session()
    if left is not None:
        left.close(timeout=0.1)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "anchors"
