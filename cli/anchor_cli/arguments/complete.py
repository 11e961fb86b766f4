"""Shell completion of runs, selectors, modes, phases: what is there, or nothing; never an error.

A shell completes while a person types: whatever goes wrong (no store, no such run, no collector)
offers nothing, prints nothing, and takes no longer than a moment.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable
from importlib import import_module

import typer

__all__ = ["formats", "modes", "phases", "run_names", "selectors"]

_PATIENCE = 2.0  # seconds for a collector, or a disk, that does not answer


def run_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The runs of the store that start with what was typed."""
    return _Place(ctx).offer(lambda place: place.runs(), incomplete)


def selectors(ctx: typer.Context, incomplete: str) -> list[str]:
    """The selectors of the run's tensors that start with what was typed."""
    return _Place(ctx).offer(lambda place: place.selectors(), incomplete)


def modes(ctx: typer.Context, incomplete: str) -> list[str]:
    """The modes in which the run recorded anything."""
    return _Place(ctx).offer(lambda place: place.modes(), incomplete)


def phases(ctx: typer.Context, incomplete: str) -> list[str]:
    """The phases of the run."""
    return _Place(ctx).offer(lambda place: place.phases(), incomplete)


def formats(ctx: typer.Context, incomplete: str) -> list[str]:
    """The formats of --as."""
    from anchorlib.summary import FORMATS

    return _Place(ctx).offer(lambda _: FORMATS, incomplete)


class _Place:
    """The store and the run that the line names so far."""

    def __init__(self, ctx: typer.Context) -> None:
        self._store: str | None = ctx.params.get("store")
        # While an option waits for its value, the words before it are not sorted into arguments.
        several = ctx.params.get("runs")
        given = ctx.params.get("run") or (several[-1] if several else None)
        self._given: str | None = given or next(iter(ctx.args), None)

    def offer(self, find: Callable[[_Place], Iterable[str]], incomplete: str) -> list[str]:
        """What `find` finds in time and starts with what was typed, sorted."""
        found: list[str] = []

        def look() -> None:
            with contextlib.suppress(Exception):
                found.extend(find(self))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._load()
            # A daemon, so that a silent collector keeps neither the shell nor this process.
            thread = threading.Thread(target=look, daemon=True)
            thread.start()
            thread.join(_PATIENCE)
        # A name with control characters would be run or drawn by the shell, not completed.
        return sorted({one for one in found if one.startswith(incomplete) and one.isprintable()})

    def _load(self) -> None:
        """Import what will be needed: on a busy machine that alone outlasts the patience."""
        import_module("anchorlib.reading")
        if any("://" in (text or "") for text in (self._store, self._given)):
            import_module("anchorlib.wire")

    @property
    def run(self) -> str:
        """The run that was named, or the only one there is."""
        if self._given:
            return self._given
        (only,) = self.runs()
        return only

    def runs(self) -> list[str]:
        from anchorlib.store import list_runs, locate_store

        return list_runs(locate_store(self._store))

    def selectors(self) -> Iterable[str]:
        from anchorlib.names import join
        from anchorlib.reading import open_run

        return [join(i.name, i.kind) for i in open_run(self.run, store=self._store).tensors()]

    def modes(self) -> Iterable[str]:
        from anchorlib.reading import open_run

        return [info.mode for info in open_run(self.run, store=self._store).tensors()]

    def phases(self) -> Iterable[str]:
        from anchorlib.store import RunReader, find_run

        found = find_run(self.run, self._store)
        reader = RunReader(found.location, found.name)
        reader.refresh()
        return [phase for rank in reader.ranks for phase in reader.rank(rank).catalogue.phases]
