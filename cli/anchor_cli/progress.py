"""How far a long command has come: a bar on stderr if that is a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Tick", "progress"]


class Tick(Protocol):
    """Is called with the amount of work that is done, and the total."""

    def __call__(self, done: int, total: int) -> None: ...


@contextmanager
def progress(title: str) -> Iterator[Tick]:
    """A bar that is removed at the end of the block; names in `title` are escaped."""
    if not sys.stderr.isatty():
        yield lambda done, total: None  # noqa: ARG005  # no terminal shows it
        return
    from rich.console import Console
    from rich.markup import escape as literal
    from rich.progress import Progress

    from anchorlib.names import escape

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(literal(escape(title)), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
