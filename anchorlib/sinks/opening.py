"""Which sink an address means: a directory the embedded one, a URL the remote one."""

from __future__ import annotations

from pathlib import Path

from anchorlib.errors import OptionError
from anchorlib.sinks.base import Sink
from anchorlib.sinks.options import RunOptions
from anchorlib.spool import spool_place

__all__ = ["open_sink"]


def open_sink(store: str, options: RunOptions) -> Sink:
    """The sink for `store`: a directory, `grpc://host:port` or `grpcs://host:port`.

    Raises RunExistsError, RunBusyError or StoreError for a directory; a collector is not waited
    for. OptionError for an address of another scheme.
    """
    scheme, separator, _rest = store.partition("://")
    if not separator:
        from anchorlib.sinks.embedded import EmbeddedSink, open_writer  # zarr is loaded when used

        return EmbeddedSink(open_writer(Path(store), options))
    if scheme in ("grpc", "grpcs"):
        import anchorlib.wire  # noqa: F401  # the first to load gRPC, as `loading` says
        from anchorlib.sinks.remote import RemoteSink  # gRPC is loaded where it is used

        return RemoteSink(store, options, spool=spool_place())
    raise OptionError(
        f"a store is a directory, grpc://host:port or grpcs://host:port; {store!r} is none of them"
    )
