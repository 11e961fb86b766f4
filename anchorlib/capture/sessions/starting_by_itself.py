"""Starts a session at the first anchor that a program calls, where ANCHOR_RUN is set."""

from __future__ import annotations

import logging
import os

from anchorlib.capture.inline import hooks
from anchorlib.capture.sessions.active import active_session, open_session
from anchorlib.capture.sessions.settings import StartArguments, settings
from anchorlib.errors import AnchorError

__all__ = ["start_where_the_environment_asks"]

_log = logging.getLogger("anchorlib")


def start_where_the_environment_asks() -> None:
    """If ANCHOR_RUN is set, have the first call of `anchor` open a session.

    That call opens none if a session is open by then. The function itself opens none.
    """
    if os.environ.get("ANCHOR_RUN"):
        hooks.arm(_start_by_itself)


def _start_by_itself() -> None:
    if active_session() is not None:
        return
    try:
        open_session(settings(StartArguments()), midway=True)  # an anchor has it called
    except Exception as fault:  # noqa: BLE001  # nobody called us here: training goes on
        hooks.deactivate()
        said = fault if isinstance(fault, AnchorError) else repr(fault)
        _log.warning("anchorlib: ANCHOR_RUN is set, but nothing is recorded: %s", said)
