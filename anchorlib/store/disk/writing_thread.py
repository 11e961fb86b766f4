"""Ensures that a single thread writes with a writer, and lets other threads stop it.

A writer keeps in memory how far its files and arrays are filled. Two threads inside it would write
rows over each other, so all its calls must come from one thread, which also closes its files.
Another thread can end the writing with `revoke`, which closes nothing.
"""

from __future__ import annotations

import threading

from anchorlib.errors import StoreError

__all__ = ["Owner"]


class Owner:
    """Knows the only thread that may write with a writer: the first thread that calls `enter`.

    revoked: whether `revoke` was called.
    """

    __slots__ = ("_thread", "revoked")

    def __init__(self) -> None:
        self._thread: int | None = None
        self.revoked = False

    def enter(self) -> None:
        """Make the calling thread the owner if there is none yet.

        Raises StoreError where another thread is the owner, or after `revoke`.
        """
        me = threading.get_ident()
        if self._thread is None:
            self._thread = me
        elif self._thread != me:
            raise StoreError("a writer belongs to one thread: another one has written with it")
        self.check()

    def check(self) -> None:
        """Raise StoreError if `revoke` was called; to be called before each operation on a file."""
        if self.revoked:
            raise StoreError("the session closed before this was written")

    def revoke(self) -> None:
        """Forbid all writing after the present file operation, without waiting for its end.

        Any thread may call this.
        """
        self.revoked = True
