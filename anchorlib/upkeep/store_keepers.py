"""The keepers of a directory and of a collector, and functions that return the keeper of a store.

A keeper removes and renames the runs of one store.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from anchorlib.errors import OptionError, RunNotFoundError
from anchorlib.names import escape
from anchorlib.store import (
    CollectorLocation,
    FoundRun,
    LocalLocation,
    Location,
    RunReader,
    SeveralCollectors,
    Within,
    disk_bytes,
    find_run,
    finish_removals,
    is_written,
    list_runs,
    locate_store,
    remove_run,
    rename_run,
    run_directory,
    written_ns,
)
from anchorlib.upkeep.archives import ArchiveState, alone_in, archives_at, archives_in
from anchorlib.upkeep.choosing import RunFacts
from anchorlib.upkeep.keeper import Keeper, RemovalStatus
from anchorlib.upkeep.live_writers import Writing, writings_at, writings_in
from anchorlib.upkeep.several_collectors import SpreadKeeper

if TYPE_CHECKING:
    from anchorlib.wire import KeeperClient

__all__ = ["keeper_at", "keeper_of", "keepers_at", "local_run", "read_facts"]

_SUFFIX = ".zarr"


class _LocalKeeper:
    def __init__(self, store: Path) -> None:
        self._store = store

    @property
    def place(self) -> str:
        return os.path.realpath(self._store)

    def writings(self) -> list[Writing]:
        return writings_in(self._store)

    def archives(self) -> list[ArchiveState]:
        return archives_in(self._store)

    def alone(self) -> dict[str, str]:
        return alone_in(self.archives())

    def runs(self) -> list[str]:
        return list_runs(LocalLocation(self._store))

    def measure(self, run: str) -> tuple[int, bool]:
        try:
            nbytes = disk_bytes(run_directory(self._store, run))
        except FileNotFoundError:
            raise RunNotFoundError(f"no run {run!r} in {escape(str(self._store))}") from None
        return nbytes, is_written(self._store, run)

    def standing(self, run: str) -> RemovalStatus:
        return RemovalStatus(*self.measure(run))  # what the system refuses it says when it is tried

    def remove(
        self,
        run: str,
        *,
        unless_after: int | None = None,
        known: RemovalStatus | None = None,  # noqa: ARG002  # it costs nothing to look again
    ) -> int:
        return remove_run(self._store, run, unless_after=unless_after)

    def rename(self, run: str, name: str) -> None:
        rename_run(self._store, run, name)

    def finish(self) -> tuple[int, list[str]]:
        return finish_removals(self._store)


class _RemoteKeeper:
    def __init__(self, client: KeeperClient, location: CollectorLocation) -> None:
        self._client = client
        self._location = location

    @property
    def place(self) -> str:
        return str(replace(self._client.address, run=None))

    def writings(self) -> list[Writing]:
        return writings_at(self._client)

    def archives(self) -> list[ArchiveState]:
        return archives_at(self._client)

    def alone(self) -> dict[str, str]:
        return alone_in(self.archives())

    def runs(self) -> list[str]:
        return list_runs(self._location)

    def measure(self, run: str) -> tuple[int, bool]:
        return self._client.measure(run)

    def standing(self, run: str) -> RemovalStatus:
        answer = self._client.standing(run)
        return RemovalStatus(answer.bytes, answer.written, answer.alone, answer.stays)

    def remove(
        self,
        run: str,
        *,
        unless_after: int | None = None,
        known: RemovalStatus | None = None,  # noqa: ARG002  # the collector looks again itself
    ) -> int:
        return self._client.remove(run, unless_after=unless_after)

    def rename(self, run: str, name: str) -> None:
        self._client.rename(run, name)

    def finish(self) -> tuple[int, list[str]]:
        return 0, []


def keeper_at(store: str) -> Keeper:
    """Return the keeper of a store, which removes and renames its runs.

    store: a directory, a collector's URL, or the URLs of several collectors, for which one keeper
        is returned.

    Raises what `locate_store` raises, and OptionError for an object store.
    """
    return _keeper(locate_store(store))


def keepers_at(store: str) -> list[Keeper]:
    """Return a keeper for each collector of a store, or the one keeper of a directory.

    store: a directory, a collector's URL, or the URL of several collectors.

    Raises what `locate_store` raises, and OptionError for an object store.
    """
    location = locate_store(store)
    several = location.collectors if isinstance(location, SeveralCollectors) else [location]
    return [_keeper(one) for one in several]


def keeper_of(stored_run: FoundRun) -> tuple[Keeper, str]:
    """Return the keeper of the store that holds a run, and the run's name in that store.

    A keeper removes and renames runs. Raises RunNotFoundError for a folder that is not called
    NAME.zarr, OptionError for a run whose files are in an archive alone or in an object store.
    """
    _check_here(stored_run)
    if isinstance(stored_run.location, Within):
        return _keeper(stored_run.location.outer), stored_run.name
    store, run = local_run(stored_run)
    return _LocalKeeper(store), run


def local_run(stored_run: FoundRun) -> tuple[Path, str]:
    """Return the directory of the store that holds a run, and the run's name in that store.

    Raises OptionError for a collector's run and for a run whose files are in an archive alone,
    RunNotFoundError for a folder that is not called NAME.zarr.
    """
    _check_here(stored_run)
    if not isinstance(stored_run.location, LocalLocation):
        raise OptionError(
            f"{stored_run.name} is a collector's: do this on its machine, with --store DIR of the "
            "collector's directory"
        )
    folder = stored_run.location.root
    if folder.suffix != _SUFFIX:
        raise RunNotFoundError(
            f"{escape(str(folder))} is a run outside a store: those of a store are called "
            "NAME.zarr; remove or rename this one by hand"
        )
    return folder.parent, folder.name.removesuffix(_SUFFIX)


def _check_here(stored_run: FoundRun) -> None:
    """Raise OptionError for a run whose files are in an archive and no longer in its store."""
    if stored_run.archive:
        raise OptionError(
            f"{stored_run.name} is in its archive alone, {escape(stored_run.archive)}, where "
            "nothing is changed from here: read it, or remove it there"
        )


def read_facts(keeper: Keeper, run: str, store: str) -> RunFacts:
    """Return what decides whether a run is removed: size, age, and whether a process writes it.

    store: the store of `keeper`, as text. Raises what `find_run` and `Keeper.measure` raise, and
        DamagedError where the run is damaged.
    """
    stored_run = find_run(run, store)
    # In this order: a session that ends between the two calls counts as still writing.
    nbytes, written = keeper.measure(run)
    reader = RunReader(stored_run.location, stored_run.name)
    reader.refresh()
    return RunFacts(run, reader.state == "closed", written, nbytes, written_ns(reader))


def _keeper(location: Location) -> Keeper:
    if isinstance(location, LocalLocation):
        return _LocalKeeper(location.root)
    if isinstance(location, CollectorLocation):
        from anchorlib.wire import KeeperClient

        return _RemoteKeeper(KeeperClient(location.client.address), location)
    if isinstance(location, SeveralCollectors):
        return SpreadKeeper({str(one.client.address): _keeper(one) for one in location.collectors})
    raise OptionError(
        "runs in an object store never change: remove or rename them with the cloud's own tools; "
        "only a directory or a collector keeps runs"
    )
