"""The access file: read when a collector starts, on SIGHUP, and whenever it has changed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from anchor_server.access import Access, parse_access
from anchorlib.errors import OptionError
from anchorlib.names import escape
from anchorlib.wire import check_private

__all__ = ["AccessFile"]

_log = logging.getLogger("anchor_server")

_LOOK_SECONDS: Final = 0.5

_Signature = tuple[int, int, int] | None


class AccessFile:
    """The file at `path`; any thread may read it.

    certificates: whether clients show certificates, or names of them in the file stand for nobody.

    From `start` to `stop` what it says is handed to `on_change` whenever it has changed, by a
    thread of its own.
    """

    def __init__(
        self, path: Path, on_change: Callable[[Access], None], *, certificates: bool
    ) -> None:
        self._path = path
        self._certificates = certificates
        self._on_change = on_change
        self._read: _Signature = None  # what it looked like when it was read
        self._seen: _Signature = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="anchor-access", daemon=True)

    def start(self) -> None:
        """Look for changes from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def read(self) -> Access:
        """What it says now.

        Raises OptionError where it cannot be read or used, where others can read it, and where it
        names certificates that nobody is asked for.
        """
        self._read = self._signature()
        try:
            check_private(self._path)
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no UTF-8"
            raise OptionError(f"cannot read {escape(str(self._path))}: {reason}") from None
        if not text.strip():
            # An editor empties a file before it writes it, which must not revoke every token.
            raise OptionError(
                f"{escape(str(self._path))} is empty: make a token with `anchor token`, or leave a "
                "comment in it to let nobody in"
            )
        access = parse_access(text, str(self._path))
        named = [grant.name for grant in access.grants if grant.certificates]
        if named and not self._certificates:
            raise OptionError(
                f"{escape(str(self._path))}: token '{named[0]}' has common_names or "
                "alternative_names, but clients show certificates only with --client-ca (beside "
                "--tls-cert and --tls-key): give it, or leave the names out"
            )
        return access

    def renew(self) -> None:
        """Hand what it says now to `on_change`; raises as `read`, and then changes nothing."""
        with self._lock:  # or what was read first might be handed over last
            self._on_change(self.read())

    def _has_changed(self) -> bool:
        """Whether it changed since it was read and has looked the same twice since then.

        What is written at this moment may be half of what is meant. A file that is gone has changed
        too: reading it says so, once.
        """
        now = self._signature()
        before, self._seen = self._seen, now
        return now != self._read and now == before

    def _signature(self) -> _Signature:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_ctime_ns, found.st_size

    def _look(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            if self._has_changed():
                self._take_over()

    def _take_over(self) -> None:
        try:
            self.renew()
        except OptionError as error:
            _log.warning("access stays as it was: %s", error)
        else:
            _log.info("the access file was read again")
