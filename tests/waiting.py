"""Waiting for what another thread or process does."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def until(done: Callable[[], bool], seconds: float = 30.0) -> None:
    """Return when `done` says so; fail where it does not in time."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.001)


def returned(act: Callable[[], T], seconds: float = 30.0) -> T:
    """What `act` returns; fail where it still waits, after a while, for what never comes.

    It is called on a thread of its own, which ends with the process where it hangs.
    """
    answers: list[T] = []
    caller = threading.Thread(target=lambda: answers.append(act()), daemon=True)
    caller.start()
    caller.join(seconds)
    assert not caller.is_alive(), "it waits for what does not come"
    return answers[0]


def until_collected(references: Iterable[weakref.ref[object]]) -> None:
    """Return when none of `references` leads anywhere; fail where one still does after a while.

    One `gc.collect()` is not enough: while another thread collects, it returns at once.
    """

    def none_left() -> bool:
        gc.collect()
        return all(reference() is None for reference in kept)

    kept = tuple(references)
    until(none_left, seconds=10)
