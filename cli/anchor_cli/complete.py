"""Shell completion of run names and selectors: what is there, or nothing; never an error.

A shell completes while a person types: whatever goes wrong (no store, no such run, no collector)
offers nothing, prints nothing, and takes no longer than a moment.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable

import typer

__all__ = ["run_names", "selectors"]

_PATIENCE = 2.0  # seconds for a collector that does not answer


def run_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The runs of the store that start with what was typed."""
    return _offer(lambda: _runs(ctx.params.get("store")), incomplete)


def selectors(ctx: typer.Context, incomplete: str) -> list[str]:
    """The selectors of the run's tensors that start with what was typed."""
    # While an option waits for its value, the words before it are not sorted into arguments yet.
    run = ctx.params.get("run") or next(iter(ctx.args), None)
    store = ctx.params.get("store")
    return _offer(lambda: _selectors(run, store), incomplete) if run else []


def _runs(store: str | None) -> list[str]:
    from anchorlib.store import list_runs, locate_store

    return list_runs(locate_store(store))


def _selectors(run: str, store: str | None) -> list[str]:
    from anchorlib.names import join
    from anchorlib.reading import open_run

    return [join(info.name, info.kind) for info in open_run(run, store=store).tensors()]


def _offer(find: Callable[[], Iterable[str]], incomplete: str) -> list[str]:
    found: list[str] = []

    def look() -> None:
        with contextlib.suppress(Exception):
            found.extend(find())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # A daemon, so that a silent collector keeps neither the shell nor this process waiting.
        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        thread.join(_PATIENCE)
    # A name with control characters would be run or drawn by the shell instead of completed.
    return sorted({text for text in found if text.startswith(incomplete) and text.isprintable()})
