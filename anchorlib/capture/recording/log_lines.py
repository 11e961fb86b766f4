"""Log lines that the user is meant to see: the bytes that a step records, the counts at the end.

They are log records of level INFO of the logger `anchorlib`. Where a program has set up logging,
its setup decides whether they are shown. Where it has not, they are written to stderr, as Python
does with warnings. The level of the logger `anchorlib` silences them:

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
    """Log `text % args`; where the program has set up no logging, write the line to stderr.

    A line of level WARNING or higher is only logged: where no logging is set up, Python itself
    writes it to stderr.

    aloud: False writes nothing to stderr. Callers pass False for sessions in memory, and for all
        ranks except the first that records.
    """
    # The handler of `anchor run` recognizes these lines by `told`.
    _log.log(level, text, *args, extra={"told": aloud})
    if aloud and level < logging.WARNING and not _is_for_the_log(level):
        with contextlib.suppress(Exception):  # stderr is None, or closed
            sys.stderr.write(f"{escape(text % args)}\n")
            sys.stderr.flush()


def _is_for_the_log(level: int) -> bool:
    """Return whether lines of `level` are left to Python's logging, and not written to stderr.

    They are where the program has set up Python's logging, or has switched logging off.
    """
    if _log.level or _log.handlers or _log.disabled or not _log.propagate:
        return True
    root = logging.getLogger()
    takes = _log.isEnabledFor(level) and any(one.level <= level for one in root.handlers)
    return takes or root.manager.disable >= level
