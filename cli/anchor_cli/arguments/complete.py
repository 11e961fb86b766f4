"""Shell completion of names of runs, selectors, modes and phases.

Each function is what typer calls for one option: `incomplete` is the text typed so far. The named
run is the run that the unfinished command line names, or else the only run of the store.

A shell completes while a person types. So where the store, the run or the collector is missing, no
completion is offered and no error is printed. A store or collector that does not answer is given up
after two seconds.
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
    """Returns the names of the store's runs that start with `incomplete`."""
    return _NamedRun(ctx).offer(lambda named: named.runs(), incomplete)


def selectors(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the selectors (name@kind) of the named run's tensors that start with `incomplete`."""
    return _NamedRun(ctx).offer(lambda named: named.selectors(), incomplete)


def modes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the modes that the named run recorded with and that start with `incomplete`."""
    return _NamedRun(ctx).offer(lambda named: named.modes(), incomplete)


def phases(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the phases (such as train) of the named run that start with `incomplete`."""
    return _NamedRun(ctx).offer(lambda named: named.phases(), incomplete)


def formats(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the number formats (such as fp16) for `--as` that start with `incomplete`."""
    from anchorlib.summary import FORMATS

    return _NamedRun(ctx).offer(lambda _: FORMATS, incomplete)


class _NamedRun:
    """The store and the run that the unfinished command line names, and their completions."""

    def __init__(self, ctx: typer.Context) -> None:
        self._store: str | None = ctx.params.get("store")
        # While an option lacks its value, click has not assigned words to arguments yet: the run
        # is then among `ctx.args`.
        several = ctx.params.get("runs")
        given = ctx.params.get("run") or (several[-1] if several else None)
        self._given: str | None = given or next(iter(ctx.args), None)

    def offer(self, find: Callable[[_NamedRun], Iterable[str]], incomplete: str) -> list[str]:
        """Calls `find` and returns, sorted, those of its results that begin with `incomplete`.

        Results with characters that cannot be printed are left out. Where `find` fails or has not
        ended after two seconds, only the results that it has given by then count, mostly none.

        find: called with this object, in a thread; returns all candidates.
        """
        candidates: list[str] = []

        def look() -> None:
            with contextlib.suppress(Exception):
                candidates.extend(find(self))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._load()
            # A daemon thread: a silent collector must not keep this process, or the shell, waiting.
            thread = threading.Thread(target=look, daemon=True)
            thread.start()
            thread.join(_PATIENCE)
        # The shell would act on control characters in a name, not complete them.
        return sorted(
            {one for one in candidates if one.startswith(incomplete) and one.isprintable()}
        )

    def _load(self) -> None:
        """Imports the modules that `find` needs before its two seconds begin.

        On a busy machine the imports alone may take longer.
        """
        import_module("anchorlib.reading")
        if any("://" in (text or "") for text in (self._store, self._given)):
            import_module("anchorlib.wire")

    @property
    def run(self) -> str:
        """The run that the line names, else the only run of the store.

        Raises ValueError where the line names no run and the store does not have exactly one run.
        """
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

        stored_run = find_run(self.run, self._store)
        reader = RunReader(stored_run.location, stored_run.name)
        reader.refresh()
        return [phase for rank in reader.ranks for phase in reader.rank(rank).catalogue.phases]
