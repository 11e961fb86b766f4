"""Opens the sink for a store's address: embedded for a directory, remote for a collector's URL."""

from __future__ import annotations

from pathlib import Path

from anchorlib.errors import OptionError
from anchorlib.names import shown_address
from anchorlib.sinks.base import Sink
from anchorlib.sinks.options import RunOptions
from anchorlib.spool import spool_place, spool_room
from anchorlib.store import is_object_url
from anchorlib.wire import Credentials, check_credentials, failover_seconds, parse_addresses

__all__ = ["check_collector", "open_sink"]


def open_sink(store: str, options: RunOptions) -> Sink:
    """Open the sink for `store`: a directory, or the URL (grpc://, grpcs://) of collectors.

    A collector need not answer yet: the sink connects to it in the background.

    For a directory this raises RunExistsError if the rank exists and `options` say neither to
    resume nor to overwrite it, RunBusyError if a live process is writing it, StoreError if the
    store cannot be used. Raises OptionError for any other URL, and for an invalid address,
    certificate or ANCHOR_SPOOL_LIMIT.
    """
    scheme, separator, _rest = store.partition("://")
    if not separator:
        from anchorlib.sinks.embedded import EmbeddedSink, open_writer  # zarr is loaded when used

        return EmbeddedSink(open_writer(Path(store), options))
    if scheme in ("grpc", "grpcs"):
        from anchorlib.sinks.remote import RemoteSink  # gRPC is loaded where it is used

        return RemoteSink(store, options, spool=spool_place())
    raise _unknown(store)


def check_collector(store: str) -> None:
    """Raise OptionError if `open_sink` could not open a sink for the URL `store`; else do nothing.

    This checks the address, certificates, token, ANCHOR_SPOOL_LIMIT and, for several collectors,
    ANCHOR_FAILOVER_SECONDS. It imports no gRPC and connects to nothing, so that a mistake is told
    before anything starts.
    """
    if store.partition("://")[0] not in ("grpc", "grpcs"):
        raise _unknown(store)
    collectors = parse_addresses(store)
    for one in collectors:
        check_credentials(one, Credentials.from_environment())
    if len(collectors) > 1:
        failover_seconds()
    spool_room()


def _unknown(store: str) -> OptionError:
    if is_object_url(store):
        return OptionError(
            f"{shown_address(store)} is an archive, which is read: record into a directory or at a "
            "collector, and `anchor archive RUN --to URL` moves closed runs there"
        )
    return OptionError(
        "a store is a directory, grpc://host:port or grpcs://host:port; "
        f"'{shown_address(store)}' is none of them"
    )
