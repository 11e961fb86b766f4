"""Trainings that several tests of a file compare: each is recorded once, then only read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import anchorlib
from anchorlib import Run


class Once:
    """Runs of trainings, each a value that says how it trains, in a folder of its own.

    train: records a training as a run of a store. A test that damages its run, resumes it or asks
    for the run's name records one of its own.
    """

    def __init__(self, train: Callable[..., object], folder: Path) -> None:
        self._train, self._folder = train, folder
        self._made: dict[tuple[Any, ...], Path] = {}
        self._folders = count()

    def __call__(self, how: Any, **options: Any) -> Run:
        """The run of this training, recorded now if no test has asked for it before."""
        key = (how, *sorted(options.items()))
        if key not in self._made:
            store = self._folder / str(next(self._folders))  # one that failed has its own
            self._train(how, "run", store, **options)
            self._made[key] = store
        return anchorlib.open_run("run", self._made[key])
