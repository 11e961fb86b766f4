"""The session of a trainer that nobody edited: its name and rank, its command, its last line."""

from __future__ import annotations

import atexit
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from multiprocessing import util

import torch

from anchorlib.capture import Session, counted, find_losses, start_unasked, state_command
from anchorlib.errors import AnchorError, RunBusyError, RunExistsError
from anchorlib.launch.request import Request
from anchorlib.launch.saying import say
from anchorlib.modes import All
from anchorlib.names import escape
from anchorlib.store import DEFAULT_STORE

__all__ = ["at_end", "end_session", "open_session"]

_RANKS = ("RANK", "SLURM_PROCID")
_TRAINERS = 100


def open_session(request: Request) -> Session:
    """Open the session that `request` asks for, on this process's rank.

    Further trainers of one command that nobody gave ranks get names with numbers: NAME-2, NAME-3.

    Raises what `anchorlib.start` raises.
    """
    rank = _rank()
    ranked = rank is not None or any(map(os.environ.get, _RANKS))
    names: Iterator[str | None] = iter([request.name])
    if request.name is not None and not ranked:
        names = (
            request.name if number == 1 else f"{request.name}-{number}"
            for number in range(1, _TRAINERS)
        )
    for name in names:
        try:
            session = start_unasked(name, rank=rank, mode=request.mode or All)
        except (RunExistsError, RunBusyError):
            if name is None or ranked or name == f"{request.name}-{_TRAINERS - 1}":
                raise
            continue
        find_losses(session)
        if request.command:
            state_command(session, request.command)
        return session
    raise AssertionError("one name at least was tried")


def _rank() -> int | None:
    """The rank in the process group of torch.distributed; None where there is none."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return None


def at_end(end: Callable[[], None]) -> None:
    """Call `end` when this process ends; children that multiprocessing has forked skip `atexit`."""
    atexit.register(end)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        util.Finalize(None, end, exitpriority=0)


def end_session(session: Session) -> None:
    """Close `session`; the first rank says where the run is, and what to type next."""
    try:
        session.close()
    except AnchorError as fault:  # nobody called us here
        say(escape(str(fault)))
    if session.rank != 0:
        return
    where = [] if session.store == DEFAULT_STORE else ["--store", session.store]
    see = shlex.join(["anchor", "names", session.run, *where])
    say(f"run {session.run}: {escape(counted(session))}. See `{escape(see)}`")
