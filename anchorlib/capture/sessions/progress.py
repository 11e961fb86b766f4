"""The progress bar of a session that writes its last records: on a terminal, if it takes long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from anchorlib.recorder import RecordQueue

__all__ = ["closing_progress"]

_PATIENCE = 0.5  # seconds before a bar appears
_REFRESH = 0.1


@contextmanager
def closing_progress(queue: RecordQueue) -> Iterator[None]:
    """Return a context manager that shows how many of the records in `queue` are written."""
    if not queue.waiting or not _is_terminal():
        yield
        return
    done = threading.Event()
    bar = threading.Thread(target=_show, args=(queue, done), name="anchorlib-progress", daemon=True)
    bar.start()
    try:
        yield
    finally:
        done.set()
        bar.join()


def _is_terminal() -> bool:
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # stderr is closed
        return False


def _show(queue: RecordQueue, done: threading.Event) -> None:
    if done.wait(_PATIENCE):
        return
    from rich.console import Console
    from rich.progress import Progress  # only where a bar is shown

    total = queue.waiting
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("anchorlib: writing what waits", total=total)
        while not done.wait(_REFRESH):
            progress.update(task, completed=total - queue.waiting)
