"""Which sink an address means: a directory the embedded one, a URL the remote one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorlib.errors import OptionError
from anchorlib.sinks.base import Sink
from anchorlib.sinks.queue import OnFull

__all__ = ["SinkOptions", "open_sink"]


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a sink needs to know of a session.

    header: JSON-able, stored with the attempt.
    fsync: what was acknowledged survives power loss.
    limit_bytes: of records that a remote sink keeps in memory, where it has no spool.
    """

    run: str
    rank: int
    header: Mapping[str, Any]
    resume: bool
    overwrite: bool
    on_full: OnFull
    limit_bytes: int
    max_bytes: int | None
    fsync: bool


def open_sink(store: str, options: SinkOptions) -> Sink:
    """The sink for `store`: a directory, `grpc://host:port` or `grpcs://host:port`.

    Raises RunExistsError, RunBusyError or StoreError for a directory; a collector is not waited
    for. OptionError for an address of another scheme.
    """
    scheme, separator, _rest = store.partition("://")
    if not separator:
        return _embedded(store, options)
    if scheme in ("grpc", "grpcs"):
        return _remote(store, options)
    raise OptionError(
        f"a store is a directory, grpc://host:port or grpcs://host:port; {store!r} is none of them"
    )


def _embedded(store: str, options: SinkOptions) -> Sink:
    from anchorlib.sinks.embedded import EmbeddedSink  # zarr is loaded where it is used
    from anchorlib.store import Writer

    writer = Writer.open(
        Path(store),
        options.run,
        options.rank,
        resume=options.resume,
        overwrite=options.overwrite,
        header=options.header,
        fsync=options.fsync,
        max_bytes=options.max_bytes,
    )
    return EmbeddedSink(writer)


def _remote(store: str, options: SinkOptions) -> Sink:
    import anchorlib.wire  # noqa: F401  # the first to load gRPC, as `loading` says
    from anchorlib.sinks.remote import RemoteSink  # gRPC is loaded where it is used
    from anchorlib.spool import spool_place

    return RemoteSink(
        store,
        options.run,
        options.rank,
        options.header,
        resume=options.resume,
        overwrite=options.overwrite,
        on_full=options.on_full,
        limit_bytes=options.limit_bytes,
        max_bytes=options.max_bytes,
        spool=spool_place(),
        power=options.fsync,
    )
