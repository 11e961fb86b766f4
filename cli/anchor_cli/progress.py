"""A progress bar on stderr for long commands, shown only where stderr is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from anchorlib.progress import Progress

__all__ = ["progress"]


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """A context that shows a progress bar, and yields the function that moves it.

    The bar is removed when the context ends. Where stderr is no terminal, no bar is shown, and the
    yielded function does nothing.

    title: the text before the bar. Control characters in it are escaped here.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None  # noqa: ARG005  # no terminal shows it
        return
    from rich.console import Console
    from rich.markup import escape as literal
    from rich.progress import Progress as Bar

    from anchorlib.names import escape

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(literal(escape(title)), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
