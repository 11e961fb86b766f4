"""Lines that whoever records is to see: what a step weighs, and at the end what was counted.

They are records of level INFO of the logger `anchorlib`. A program that has set up its logging has
them there, or has said that it wants none. One that has not sees them on stderr, where Python shows
it warnings too. What silences them is the level of that logger:

    logging.getLogger("anchorlib").setLevel(logging.WARNING)
"""

from __future__ import annotations

import contextlib
import logging
import sys

from anchorlib.names import escape

__all__ = ["tell"]

_log = logging.getLogger("anchorlib")


def tell(text: str, *args: object, level: int = logging.INFO, aloud: bool = True) -> None:
    """Log `text % args`; what is no warning is written to stderr too, where no log is set up.

    aloud: False leaves it at the log, as further ranks and sessions in memory do.
    """
    # `anchor run` has a handler of its own, which knows these lines by `told`.
    _log.log(level, text, *args, extra={"told": aloud})
    if aloud and level < logging.WARNING and not _is_for_the_log(level):
        with contextlib.suppress(Exception):  # stderr is None, or closed
            sys.stderr.write(f"{escape(text % args)}\n")
            sys.stderr.flush()


def _is_for_the_log(level: int) -> bool:
    """Whether a log takes lines of `level`, or the program has set up the logger `anchorlib`."""
    if _log.level or _log.handlers or _log.disabled or not _log.propagate:
        return True
    root = logging.getLogger()
    takes = _log.isEnabledFor(level) and any(one.level <= level for one in root.handlers)
    return takes or root.manager.disable >= level
