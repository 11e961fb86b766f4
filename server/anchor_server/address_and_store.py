"""Checks of the address that a collector listens on, and of the directory that it stores into."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Final

from anchor_server.ports import listener
from anchorlib.errors import OptionError, StoreError
from anchorlib.names import quoted
from anchorlib.store import check_writable, finish_removals, make_store
from anchorlib.wire import is_loopback

__all__ = ["checked_host", "end_removals", "host_and_port", "port_taken", "take_store"]

_log = logging.getLogger("anchor_server")

_OTHER_STORE = "give another with --store"
_BIND: Final = re.compile(r"(\[[^][]+\]|[^][]+):(\d{1,5})", re.ASCII)


def host_and_port(bind: str) -> tuple[str, int] | None:
    """Splits an address to listen on, such as "127.0.0.1:50051", into its host and port.

    An IPv6 host keeps its brackets. Returns None for a text that is no such address.
    """
    match = _BIND.fullmatch(bind)
    if match is None or int(match[2]) >= 1 << 16:
        return None
    return match[1], int(match[2])


def checked_host(bind: str, *, guarded: bool, insecure: bool) -> str:
    """Checks an address to listen on, and returns its host.

    Raises OptionError for a text that is no address. Where the collector is neither `guarded` nor
    `insecure`, also raises OptionError for an address that other machines can reach.

    bind: the address, such as "127.0.0.1:50051".
    guarded: whether the collector uses TLS and demands a token or a certificate from callers.
    insecure: whether the user allows other machines to connect without that.
    """
    host_port = host_and_port(bind)
    if host_port is None:
        raise OptionError(f"{quoted(bind)} is no address to listen on; write host:port")
    host, _ = host_port
    if not (is_loopback(host) or guarded or insecure):
        raise OptionError(
            f"{host} can be reached from other machines: give a certificate and a token (or a "
            "client CA), or say --insecure if everyone who reaches it may write and read"
        )
    return host


def port_taken(bind: str) -> str:
    """Returns the error text for an address that cannot be bound.

    The text names the process that holds the port, where the system shows it.
    """
    return (
        f"cannot listen on {bind}: {listener(int(bind.rpartition(':')[2]))} holds that "
        "port, or the address is not this machine's; stop it, or choose another with "
        "--bind (port 0 picks one)"
    )


def take_store(store: Path, *, fsync: bool, read_only: bool) -> None:
    """Makes the store's directory where it is missing, and checks that it can be written.

    Raises StoreError where the directory is missing, cannot be made or cannot be written.

    fsync: whether to make a new directory survive power loss.
    read_only: whether to check only that the directory exists, and to make and write nothing.
    """
    if read_only:
        if not store.is_dir():
            raise StoreError(f"there is no store {store} to be read; {_OTHER_STORE}")
        return
    try:
        make_store(store, fsync=fsync)
    except OSError as error:
        raise StoreError(
            f"cannot make the store {store}: {error.strerror}; {_OTHER_STORE}"
        ) from error
    try:
        check_writable(store)
    except OSError as error:
        raise StoreError(
            f"cannot write into the store {store}: {error.strerror}; {_OTHER_STORE}"
        ) from error


def end_removals(store: Path) -> None:
    """Completes removals of runs that were interrupted; logs a warning for files that remain."""
    try:
        _, problems = finish_removals(store)
    except OSError as error:
        problems = [f"cannot look for interrupted removals: {error.strerror}"]
    for problem in problems:
        _log.warning("%s", problem)
