"""The session that a watcher opens for an unedited program: its name, rank, log lines and end."""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from multiprocessing import util

import torch

from anchorlib.capture import (
    Session,
    close_without_summary,
    find_losses,
    prints_messages,
    start_unasked,
    state_command,
    summary_line,
)
from anchorlib.errors import AnchorError, RunBusyError, RunExistsError
from anchorlib.launch.request import Request
from anchorlib.launch.stderr_lines import say
from anchorlib.modes import All
from anchorlib.names import escape
from anchorlib.store import DEFAULT_STORE

__all__ = ["at_end", "end_session", "open_session"]

_RANKS = ("RANK", "SLURM_PROCID")
_TRAINERS = 100
# Log lines suggest arguments as Python; for users of `anchor run` they become options.
_TYPED = {
    'phases=("train",)': "--phases train",
    "steps=range(0, 100)": "--steps 0:100",
    "mode=Summary": "--mode summary",
    "tensors= without": "--watch without",
    "start(on_full='drop')": "ANCHOR_ON_FULL=drop",
}


class _StderrHandler(logging.Handler):
    """A log handler that writes the lines of the logger `anchorlib` to stderr.

    Without it they would go into the log of the program. Warnings are always written. Other lines
    are written where the root logger's level admits them, or where they are meant for the user (see
    `capture.recording.log_lines`).
    """

    _level = logging.NOTSET

    def begin(self) -> None:
        """Handle the lines of the logger `anchorlib` from now on, and stop their propagation."""
        logger = logging.getLogger("anchorlib")
        self._level = logger.level
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of `record` to stderr, if the rule that the class states admits the line.

        Arguments of Python functions that the line suggests become options of `anchor run`, which
        the user can type.
        """
        text = record.getMessage().removeprefix("anchorlib: ")
        asked = logging.getLogger().isEnabledFor(record.levelno)
        if record.levelno >= logging.WARNING or asked or getattr(record, "told", False):
            for option, typed in _TYPED.items():
                text = text.replace(option, typed)
            say(text)

    def end(self) -> None:
        """Undo `begin`: the logger `anchorlib` gets its old level and propagates its lines again.

        Called when the watcher's session is over, or when the program opens its own session.
        """
        logger = logging.getLogger("anchorlib")
        logger.removeHandler(self)
        logger.setLevel(self._level)
        logger.propagate = True


_stderr_handler = _StderrHandler()


def open_session(request: Request) -> Session:
    """Open and return the session that `request` asks for, with this process's rank.

    Where processes have no rank, the first training process of a command records the run NAME, and
    the next ones record NAME-2, NAME-3 and so on up to NAME-99. Raises whatever `anchorlib.start`
    raises.
    """
    _stderr_handler.begin()
    try:
        session = _first_that_opens(request)
    except BaseException:
        _stderr_handler.end()
        raise
    find_losses(session)
    if request.command:
        state_command(session, request.command)
    return session


def _first_that_opens(request: Request) -> Session:
    rank = _rank()
    ranked = rank is not None or any(map(os.environ.get, _RANKS))
    names: Iterator[str | None] = iter([request.name])
    if request.name is not None and not ranked:
        names = (
            request.name if number == 1 else f"{request.name}-{number}"
            for number in range(1, _TRAINERS)
        )
    mode = request.mode or All
    for name in names:
        try:
            return start_unasked(name, rank=rank, mode=mode, gives_way=_stderr_handler.end)
        except (RunExistsError, RunBusyError):
            if name is None or ranked or name == f"{request.name}-{_TRAINERS - 1}":
                raise
    raise AssertionError("one name at least was tried")


def _rank() -> int | None:
    """Return the rank in the process group of torch.distributed; None without such a group."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return None


def at_end(end: Callable[[], None]) -> None:
    """Have `end` called when this process ends.

    Registers `end` with atexit and, in a child of multiprocessing, which skips atexit, also with
    multiprocessing.
    """
    atexit.register(end)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        util.Finalize(None, end, exitpriority=0)


def end_session(session: Session, store: str) -> None:
    """Close `session`, and write to stderr where the run is and which command shows it.

    Only the first rank writes this. An error at closing is written to stderr, not raised.

    store: the store as the user typed it; "" where the user did not type any.
    """
    try:
        close_without_summary(session)
    except AnchorError as fault:  # no caller could handle it: the process ends
        say(escape(str(fault)))
    _stderr_handler.end()
    if not prints_messages(session):
        return
    store = store or session.store
    where = [] if store == DEFAULT_STORE else ["--store", store]
    see = shlex.join(["anchor", "names", session.run, *where])
    say(f"run {session.run}: {escape(summary_line(session, store))}. See `{escape(see)}`")
