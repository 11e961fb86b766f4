"""Sessions: opened by `start`, the environment or `anchor run`; their settings and watches."""

from anchorlib.capture.sessions.active import active_session
from anchorlib.capture.sessions.counters import Counters
from anchorlib.capture.sessions.framework_sessions import (
    after_a_step,
    before_training_goes_on,
    catches_up_before_steps,
    close_without_summary,
    find_losses,
    forget_choices,
    has_begun,
    is_watched,
    leaves_out,
    prints_messages,
    see_called_parts,
    sharing_names,
    start_unasked,
    state_command,
    summary_line,
    unwatch,
)
from anchorlib.capture.sessions.session import Session
from anchorlib.capture.sessions.starting import graft, record_into, start, tensor_names
from anchorlib.capture.sessions.starting_by_itself import start_where_the_environment_asks

__all__ = [
    "Counters",
    "Session",
    "active_session",
    "after_a_step",
    "before_training_goes_on",
    "catches_up_before_steps",
    "close_without_summary",
    "find_losses",
    "forget_choices",
    "graft",
    "has_begun",
    "is_watched",
    "leaves_out",
    "prints_messages",
    "record_into",
    "see_called_parts",
    "sharing_names",
    "start",
    "start_unasked",
    "state_command",
    "summary_line",
    "tensor_names",
    "unwatch",
]

start_where_the_environment_asks()
