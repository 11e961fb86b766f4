"""What a collector needs of its machine: an address that it may listen on, and a store."""

from __future__ import annotations

import logging
from pathlib import Path

from anchor_server.ports import listener
from anchorlib.errors import OptionError, StoreError
from anchorlib.store import check_writable, finish_removals, make_store
from anchorlib.wire import is_loopback

__all__ = ["checked_host", "end_removals", "port_taken", "take_store"]

_log = logging.getLogger("anchor_server")

_OTHER_STORE = "give another with --store"


def checked_host(bind: str, *, guarded: bool, insecure: bool) -> str:
    """The host of an address to listen on; guarded: by TLS and what callers have to show.

    Raises OptionError for what is no address, and for one beyond this machine without protection.
    """
    host, colon, port = bind.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) >= 1 << 16:
        raise OptionError(f"{bind!r} is no address to listen on; write host:port")
    if not (is_loopback(host) or guarded or insecure):
        raise OptionError(
            f"{host} can be reached from other machines: give a certificate and a token (or a "
            "client CA), or say --insecure if everyone who reaches it may write and read"
        )
    return host


def port_taken(bind: str) -> str:
    """Why nobody can listen on an address, in a sentence."""
    return (
        f"cannot listen on {bind}: {listener(int(bind.rpartition(':')[2]))} holds that "
        "port, or the address is not this machine's; stop it, or choose another with "
        "--bind (port 0 picks one)"
    )


def take_store(store: Path, *, fsync: bool, read_only: bool) -> None:
    """Makes the store, if need be, and sees that it can be written; read_only: leaves it alone.

    Raises StoreError.
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
    """Ends what was interrupted; what cannot be deleted keeps its room on the disk, and is told."""
    try:
        _, problems = finish_removals(store)
    except OSError as error:
        problems = [f"cannot look for interrupted removals: {error.strerror}"]
    for problem in problems:
        _log.warning("%s", problem)
