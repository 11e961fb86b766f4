"""Finds everything that would prevent a collector from starting, without starting it.

The checks create no files and answer no calls; each port is bound for a moment only.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from anchor_server.access_file import AccessFile
from anchor_server.address_and_store import checked_host, host_and_port, port_taken
from anchor_server.certificates import check_own
from anchor_server.counters import CollectorCounters
from anchor_server.metrics import MetricsPort
from anchor_server.tls import ServerTLS
from anchorlib.errors import AnchorError
from anchorlib.names import escape

__all__ = ["CollectorSettings", "problems"]

_STORE: Final = "give another with --store"


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """The settings of a collector that is to be started.

    Fields that are not explained here are arguments of `Collector`.

    store: the directory; None where `--store` names something else, such as a URL.
    self_signed: whether the collector makes its own certificate.
    guarded: whether the settings ask for TLS, and for a token or a certificate from callers.
        Whether the given files are valid does not count here.
    metrics_bind: host:port at which Prometheus reads metrics; None serves no metrics.
    archive: the directory where closed runs go; None where they stay, or go to an object store.
    """

    store: Path | None
    bind: str
    tls: ServerTLS | None = None
    self_signed: bool = False
    guarded: bool = False
    access: Path | None = None
    insecure: bool = False
    read_only: bool = False
    metrics_bind: str | None = None
    archive: str | None = None


def problems(wanted: CollectorSettings) -> list[str]:
    """Returns a sentence for each thing that would prevent the start of a collector.

    Returns [] where nothing would prevent it. Most sentences also say what to do about the problem.
    """
    checks = (_store, _archive, _access, _certificates, _address, _ports)
    return [problem for check in checks for problem in check(wanted)]


def _store(wanted: CollectorSettings) -> Iterator[str]:
    if (store := wanted.store) is None:
        return
    if wanted.read_only:
        if not store.is_dir():
            yield f"there is no store {store} to be read; {_STORE}"
        elif not os.access(store, os.R_OK | os.X_OK):
            yield f"cannot read the store {store}: {_reason(store)}; {_STORE}"
        return
    yield from _unwritable("store", store, _STORE)


def _archive(wanted: CollectorSettings) -> Iterator[str]:
    if wanted.archive is not None:
        yield from _unwritable("archive", Path(wanted.archive), "give another with --archive")


def _unwritable(what: str, folder: Path, remedy: str) -> Iterator[str]:
    """Yields why a folder cannot be written, or cannot be made where it does not exist yet.

    Yields one sentence, or nothing where the folder can be written or made.

    what: what the folder is, for the sentence, such as "store".
    remedy: what to do, for the end of the sentence.
    """
    whole = folder.absolute()
    there = next(path for path in (whole, *whole.parents) if _is_there(path))
    shown = escape(str(folder))
    if not there.is_dir():
        yield f"cannot make the {what} {shown}: {escape(str(there))} is no directory; {remedy}"
    elif not os.access(there, os.W_OK | os.X_OK):
        verb = "write into" if there == whole else "make"
        yield f"cannot {verb} the {what} {shown}: {_reason(there)}; {remedy}"


def _is_there(path: Path) -> bool:
    with suppress(OSError):  # this process may not look into a folder above it
        return os.path.lexists(path)
    return False


def _reason(path: Path) -> str:
    """Returns why this process may not use a folder: a read-only file system, or missing rights."""
    on_disk = os.statvfs(path)
    if on_disk.f_flag & os.ST_RDONLY:
        return f"{path} is on a file system that is read-only"
    return f"who runs this (user {os.geteuid()}) has no right to {path}"


def _access(wanted: CollectorSettings) -> Iterator[str]:
    if (file := wanted.access) is not None:
        named = wanted.tls is not None and wanted.tls.client_ca_file is not None
        yield from _faults(AccessFile(file, lambda _: None, certificates=named).read)


def _certificates(wanted: CollectorSettings) -> Iterator[str]:
    if wanted.self_signed:
        yield from _faults(check_own)
    if (tls := wanted.tls) is not None:
        yield from _faults(tls.configuration)


def _address(wanted: CollectorSettings) -> Iterator[str]:
    yield from _faults(
        lambda: checked_host(wanted.bind, guarded=wanted.guarded, insecure=wanted.insecure)
    )


def _ports(wanted: CollectorSettings) -> Iterator[str]:
    """Yields a sentence for each port that cannot be bound: the collector's, and that for metrics.

    Both ports are bound at the same time, so that settings which name the same port twice are
    noticed; both are free again when the generator ends.
    """
    with ExitStack() as held:
        if (address := host_and_port(wanted.bind)) is not None:
            host, port = address
            try:
                held.enter_context(_listening(host.strip("[]"), port))
            except (OSError, UnicodeError):  # the latter for a name that no machine can have
                yield port_taken(wanted.bind)
        if (bind := wanted.metrics_bind) is not None:
            yield from _faults(
                lambda: MetricsPort(
                    bind, CollectorCounters(), wanted.store or Path(), insecure=wanted.insecure
                ).close()
            )


def _listening(host: str, port: int) -> socket.socket:
    """Returns a socket that listens on the port; raises OSError where it cannot be bound."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server((str(address[0]), port), family=family)


def _faults(call: Callable[[], object]) -> Iterator[str]:
    try:
        call()
    except AnchorError as error:
        yield str(error)
