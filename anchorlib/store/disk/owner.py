"""Who may write: one thread, until it is told to stop.

A writer keeps its place in files and arrays in memory. Two threads inside it would write rows over
each other; so it asserts that all its calls come from one thread, and that thread alone closes its
files. Another thread can end the writing with `revoke`, which closes nothing.
"""

from __future__ import annotations

import threading

from anchorlib.errors import StoreError

__all__ = ["Owner"]


class Owner:
    """The thread that writes: whichever does so first."""

    __slots__ = ("_thread", "revoked")

    def __init__(self) -> None:
        self._thread: int | None = None
        self.revoked = False

    def enter(self) -> None:
        """The calling thread is about to write. Raises StoreError where another one owns this."""
        me = threading.get_ident()
        if self._thread is None:
            self._thread = me
        elif self._thread != me:
            raise StoreError("a writer belongs to one thread: another one has written with it")
        self.check()

    def check(self) -> None:
        """Asked before each operation on a file. Raises StoreError once `revoke` was called."""
        if self.revoked:
            raise StoreError("the session closed before this was written")

    def revoke(self) -> None:
        """Any thread may call it: the operation that is under way is the last one."""
        self.revoked = True
