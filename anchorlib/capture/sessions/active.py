"""The one active session of this process: set when it opens here, and cleared when it closes."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from anchorlib.capture.headers import run_header
from anchorlib.capture.inline import hooks
from anchorlib.capture.sessions.session import Session
from anchorlib.capture.sessions.settings import Settings
from anchorlib.errors import SessionError
from anchorlib.recorder import RecordQueue, process_queue, thread_queue
from anchorlib.sinks import MemorySink, RunOptions, Sink, open_sink
from anchorlib.torch_private import AffectedPrograms, tell_moved

if TYPE_CHECKING:
    from anchorlib.reading import Run

__all__ = ["active_session", "open_session"]

_log = logging.getLogger("anchorlib")
_session: Session | None = None
_gives_way: Callable[[], object] | None = None  # set where the program did not open _session


def active_session() -> Session | None:
    """Return the session that records in this process; None where no session is open."""
    return _session


def open_session(
    settings: Settings,
    sink: Sink | None = None,
    *,
    gives_way: Callable[[], object] | None = None,
    midway: bool = False,
) -> Session:
    """Open the session that `settings` describe, and make it the active session of this process.

    sink: where the session's records go; None: into the store that `settings` name.
    gives_way: given where the program did not ask for this session. If the program then opens a
        session itself, this session is closed, `gives_way` is called, and the program's session
        takes its place.
    midway: whether the open step has begun already, so that it cannot be traced whole.

    Raises SessionError where a session is active already that does not give way, and whatever
    opening the store or the run in ANCHOR_GRAFT raises.
    """
    global _session, _gives_way  # one active session a process
    if _session is not None:
        if _gives_way is None:
            raise SessionError(
                f"a session of run {_session.run!r} is active in this process; close it first"
            )
        settings = _taking_the_place_of(_session, settings)
        _gives_way()
    grafted = _grafted(settings)  # before the session is made: this may raise
    aloud = settings.prints_messages and sink is None
    session = Session(settings, _queue_of(settings, sink), _give_up, aloud=aloud)
    _session, _gives_way = session, gives_way
    if grafted is not None:
        session.begin_graft(grafted)
    if settings.recording:
        hooks.activate(session._anchors)  # noqa: SLF001
        if settings.trace is not None and settings.trace.stop > settings.first_step:
            session._traces.begin(settings.trace, midway=midway)  # noqa: SLF001
    else:
        hooks.deactivate()
    atexit.register(session.close)
    return session


def _grafted(settings: Settings) -> Run | None:
    """Open and return the run that ANCHOR_GRAFT names; None where the variable is not set.

    The session will replace its values at every anchor by the values of that run. None is also
    returned where this rank records nothing.
    """
    if settings.graft is None or not settings.recording:
        return None
    from anchorlib.reading import open_run  # the store is loaded where it is read

    return open_run(settings.graft, settings.store)


def _taking_the_place_of(session: Session, settings: Settings) -> Settings:
    """Close `session` with a warning; return the settings of the session that takes its place.

    These are `settings`. But where both sessions record the same rank of a run into the same store,
    and `session` has made no record, the new session is set to overwrite that run.
    """
    session._ending.has_summary_line = False  # noqa: SLF001  # the warning below tells it
    session.close()
    kept = settings.kept
    same = (session.run, session.rank, session.store) == (kept.run, kept.rank, settings.store)
    left = not same and not session.counters.records and session.rank == 0
    _log.warning(
        "anchorlib: the program opens a session of its own, run %s: run %s ends with %d records%s",
        settings.run,
        session.run,
        session.counters.records,
        f"; `anchor rm {session.run}` removes it" if left else "",
    )
    if not same or session.counters.records:
        return settings
    return replace(settings, kept=replace(kept, overwrite=True, resume=False))


def _give_up(session: Session) -> None:
    global _session  # noqa: PLW0603
    atexit.unregister(session.close)
    if _session is session:
        _session = None
        hooks.deactivate()


def _queue_of(settings: Settings, sink: Sink | None) -> RecordQueue:
    if not settings.recording:
        sink = MemorySink()  # it gets no records
    options = _options(settings)
    if sink is None and settings.recorder == "process":
        return process_queue(settings.store, options, _keep_subnormals)
    return thread_queue(
        sink or open_sink(settings.store, options),
        limit_bytes=settings.queue_bytes,
        on_full=settings.on_full,
        on_start=_keep_subnormals,
    )


def _keep_subnormals() -> None:
    """Stop this thread from flushing subnormal numbers to zero, since summaries count them.

    Called in threads that compute summaries: they have inherited the flushing mode of the training
    thread that started them.
    """
    torch.set_flush_denormal(False)


def _options(settings: Settings) -> RunOptions:
    header = run_header(settings.attributes) if settings.recording else {}
    moved = tell_moved(AffectedPrograms.EAGER) if settings.recording else []
    if moved:
        header["torch.moved"] = moved
    if settings.perturbation is not None:
        header["perturbed"] = settings.perturbation.text
    return replace(settings.kept, header=header)


def _after_fork() -> None:
    """Silence, in a forked child, the session that the parent process opened.

    Called by Python in each forked child, which has the session's hooks, and shares with the parent
    the memory in which records wait.
    """
    global _session  # noqa: PLW0603
    if _session is not None:
        # The child must not close the session: queue, spool and store are the parent's.
        _session._observer.closed = True  # noqa: SLF001
        _session._traces.silence()  # noqa: SLF001
    _session = None


os.register_at_fork(after_in_child=_after_fork)
