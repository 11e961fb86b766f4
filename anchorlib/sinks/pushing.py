"""What `anchor push` does: deliver a spool, or copy a run to another store.

A spool holds the records that a trainer has not delivered to its collector. zarr and gRPC are
imported where they are used, so that the command line starts quickly.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from anchorlib.errors import OptionError
from anchorlib.names import check_run_name, shown_address
from anchorlib.spool import is_spool, was_spool

if TYPE_CHECKING:
    from anchorlib.sinks.copying import CopyResult
    from anchorlib.spool import DeliveryResult

__all__ = ["push"]


def push(
    what: str,
    to: str,
    store: str,
    *,
    run: str | None = None,
    patience: float,
    progress: Callable[[int, int], None],
) -> DeliveryResult | CopyResult:
    """Deliver the spool in directory `what`, or copy the run `what` of `store`, to the store `to`.

    A spool is removed once all of it was delivered. Returns counts of what was delivered or copied;
    for the path of a spool that was removed already they are 0.

    run: the name that the run gets in `to`; None for the name that it has.
    patience: how many seconds a collector may stay without answer or progress.
    progress: called now and then with (number of records that `to` has by now, number in all).

    Raises RunNotFoundError if `what` is neither a spool nor a run of `store`, RunBusyError if a
    live process owns the spool or writes the run in `to`, RunExistsError if `to` has another
    recording under this name, CollectorError if a collector refuses or does not answer, StoreError
    if the spool or a store cannot be read or written, InvalidNameError for an invalid `run`, and
    OptionError for a run that is to be copied to an archive.
    """
    if run is not None:
        check_run_name(run)
    if is_spool(Path(what)):
        from anchorlib.spool import deliver

        return deliver(Path(what), to, run=run, patience=patience, progress=progress)
    if (delivered := was_spool(Path(what))) is not None:
        from anchorlib.spool import DeliveryResult

        return DeliveryResult(run or delivered[0], delivered[1], 0, 0, 0, 0)
    from anchorlib.sinks.copying import copy_run
    from anchorlib.store import find_run, is_object_url

    if is_object_url(to):
        raise OptionError(
            f"{shown_address(to)} is an archive: use `anchor archive RUN --to URL`, which seals "
            "closed runs first"
        )
    source = find_run(what, store)
    return copy_run(source, to, run or source.name, patience=patience, progress=progress)
