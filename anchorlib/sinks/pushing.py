"""What `anchor push` does, behind the door: zarr and gRPC are loaded when they are used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anchorlib.sinks.copying import Copied
    from anchorlib.sinks.spool_delivery import Delivered

__all__ = ["is_spool", "push"]


def is_spool(path: Path) -> bool:
    """Whether a directory is a spool."""
    from anchorlib.sinks import spool_place

    return spool_place.is_spool(path)


def push(
    what: str, to: str, store: str, *, patience: float, progress: Callable[[int, int], None]
) -> Delivered | Copied:
    """Deliver a spool, or copy the run `what` of `store`, to the store at `to`.

    Raises RunNotFoundError, RunBusyError, RunExistsError, CollectorError, StoreError.
    """
    if is_spool(Path(what)):
        from anchorlib.sinks.spool_delivery import deliver

        return deliver(Path(what), to, patience=patience, progress=progress)
    from anchorlib.sinks.copying import copy_run
    from anchorlib.store import find_run

    return copy_run(find_run(what, store), to, patience=patience, progress=progress)
