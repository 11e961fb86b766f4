"""Recording: the only part of anchorlib that knows torch.

sessions    start, the environment, `anchor run`: what a session was asked, holds and watches
models      a watched model: outputs, inputs, parameters, buffers
optimizers  a watched optimizer: what a step consumed, changed and keeps
inline      what programs call inside their models: anchor, print_tensor; and the loss, found
compiled    anchors in code that torch.compile compiles
eager       anchors while Python runs: the value now, the gradient in backward
tracing     every operation of some steps
ancestry    from what a value was computed
recording   from observations to records: streams, folds, what a step weighs
counting    how an observation gets its step, pass, call and phase
naming      names of what a model and its optimizer are made of
headers     what a run depends on besides its tensors
tensors     where the values of a tensor lie, and how they are copied
own_hooks   ours in torch's dicts of hooks, left out of what is saved
frames      functions of ours that dynamo meets
"""

from __future__ import annotations

from anchorlib.capture.inline import anchor, paused, print_tensor
from anchorlib.capture.naming import named_leaves, parts_of, unwrapped
from anchorlib.capture.sessions import (
    Counters,
    Session,
    active_session,
    after_a_step,
    before_training_goes_on,
    catches_up_before_steps,
    close_untold,
    counted,
    find_losses,
    forget_choices,
    graft,
    has_begun,
    is_watched,
    leaves_out,
    record_into,
    see_called_parts,
    sharing_names,
    speaks,
    start,
    start_unasked,
    state_command,
    tensor_names,
    unwatch,
)
from anchorlib.capture.tensors import TorchArithmetic

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
