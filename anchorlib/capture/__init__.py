"""Recording: the only part of anchorlib that knows torch.

starting       start, tensor_names, auto-start     observer   values now, gradients later
opening        the one active session              putter     the compiled put, if there is one
session        what users hold                     recorder   modes, and records for the queue
settings       arguments and environment           clock      step, pass, call, phase
hooks          anchor                              snapshot   where a tensor's values are
watching       models, optimizers, their names     printing   print_tensor
modules        one model's outputs, parameters     header     what a run depends on
optimizer      what happens around a step          choice     what a watch chose
checkpointing  what backward runs again            structure  names of a model's parts
phases         what each thread is in              turns      which optimizer ends a step
forwards       those that no gradient can reach    passes     what one phase counts in a step
surroundings   the stack around an observation     streams    folds, one a mode and phase
unasked        sessions of unedited programs       losses     what backward is called on
weighing       what a step weighs                  telling    what is logged, or shown on stderr
own_hooks      ours in torch's dicts of hooks, left out of what is saved
"""

from __future__ import annotations

from anchorlib.capture.hooks import anchor, paused
from anchorlib.capture.opening import active_session
from anchorlib.capture.printing import print_tensor
from anchorlib.capture.session import Counters, Session, leaves_out, sharing_names
from anchorlib.capture.snapshot import TorchArithmetic
from anchorlib.capture.starting import graft, record_into, start, tensor_names
from anchorlib.capture.structure import named_leaves, parts_of, unwrapped
from anchorlib.capture.unasked import (
    after_a_step,
    before_training_goes_on,
    catches_up_before_steps,
    close_untold,
    counted,
    find_losses,
    forget_choices,
    has_begun,
    is_watched,
    see_called_parts,
    speaks,
    start_unasked,
    state_command,
    unwatch,
)

__all__ = [
    "Counters",
    "Session",
    "TorchArithmetic",
    "active_session",
    "after_a_step",
    "anchor",
    "before_training_goes_on",
    "catches_up_before_steps",
    "close_untold",
    "counted",
    "find_losses",
    "forget_choices",
    "graft",
    "has_begun",
    "is_watched",
    "leaves_out",
    "named_leaves",
    "parts_of",
    "paused",
    "print_tensor",
    "record_into",
    "see_called_parts",
    "sharing_names",
    "speaks",
    "start",
    "start_unasked",
    "state_command",
    "tensor_names",
    "unwatch",
    "unwrapped",
]
