"""What one worker of a run makes and the others read: a file may be tested in several of them."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Callable
from pathlib import Path


def made_once(name: str, make: Callable[[], bytes]) -> bytes:
    """What `make` returns, called by the first process of this run that asks for `name`.

    The others wait for it. It lies in the temporary folder of the run: see `tests.places`.
    """
    kept = Path(tempfile.gettempdir()) / name
    with kept.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not kept.stat().st_size:
            file.write(make())
    return kept.read_bytes()
