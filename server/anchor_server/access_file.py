"""Reads the access file, which lists tokens and their rights, and reads it again when it changes.

A collector also reads the file when it starts, and on SIGHUP. The grants in the file are its tokens
with the rights of each.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from anchor_server.tokens import Access, parse_access
from anchorlib.errors import OptionError
from anchorlib.names import escape
from anchorlib.wire import check_private

__all__ = ["AccessFile"]

_log = logging.getLogger("anchor_server")

_LOOK_SECONDS: Final = 0.5

_Signature = tuple[int, int, int] | None


class AccessFile:
    """The access file at `path`, with a thread that watches it; any thread may call `read`.

    on_change: called by the thread, from `start` to `stop`, with the file's grants (tokens with
        their rights) whenever the file has changed. Changed files that cannot be used are only
        logged.
    certificates: whether clients are asked for certificates. If not, a file that names any is
        refused, because nobody could ever have their rights.
    """

    def __init__(
        self, path: Path, on_change: Callable[[Access], None], *, certificates: bool
    ) -> None:
        self._path = path
        self._certificates = certificates
        self._on_change = on_change
        self._read: _Signature = None  # when the file was last read
        self._seen: _Signature = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="anchor-access", daemon=True)

    def start(self) -> None:
        """Starts the thread that looks for changes of the file."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread that looks for changes of the file, and waits for its end."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def read(self) -> Access:
        """Reads the file and returns the grants in it: the tokens with their rights.

        Raises OptionError where the file cannot be read or used, where other users can read it, and
        where it names certificates although clients are asked for none.
        """
        self._read = self._signature()
        try:
            check_private(self._path)
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no UTF-8"
            raise OptionError(f"cannot read {escape(str(self._path))}: {reason}") from None
        if not text.strip():
            # Some editors empty a file before they write it: that must not revoke every token.
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
        """Reads the file again and calls `on_change` with its grants (tokens with their rights).

        Raises OptionError where the file cannot be read or used; `on_change` is then not called, so
        that the old grants stay in use.
        """
        with self._lock:  # of two threads, the one that read first must not hand over last
            self._on_change(self.read())

    def _has_changed(self) -> bool:
        """Returns whether the file was changed after it was read, and the change is complete.

        A change counts as complete when the file is the same at this call and at the call before:
        until then someone may be writing the file. A file that was read before and is missing now
        counts as changed, so that the attempt to read it logs the error, once.
        """
        now = self._signature()
        before, self._seen = self._seen, now
        return now != self._read and now == before

    def _signature(self) -> _Signature:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns, status.st_size

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
