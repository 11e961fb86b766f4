"""Recording: the part of anchorlib that runs inside a PyTorch training and observes its tensors.

sessions      sessions by start, the environment or `anchor run`: their settings and watches
models        a watched model: outputs, inputs, parameters, buffers
optimizers    a watched optimizer: gradients, updates and state around its steps
inline        `anchor` and `print_tensor`, called inside models; and how the loss is found
compiled      anchors in code that torch.compile compiles
eager         anchors in eager code: the value at once, the gradient in backward
tracing       every operation of some steps
ancestry      the tensors from which a value was computed
recording     from observations to records: what each mode selects, and the bytes of a step
counting      how an observation gets its step, pass, call and phase
naming        names of the parts of a model and of its optimizer's state
headers       facts that a run depends on besides its tensors
tensors       where the values of a tensor lie, and how they are copied
own_hooks     our entries in torch's dicts of hooks, left out of saved and copied objects
dynamo_marks  how dynamo treats functions of ours
"""

from __future__ import annotations

from anchorlib.capture.inline import anchor, paused, print_tensor
from anchorlib.capture.naming import named_leaves, named_members, unwrapped
from anchorlib.capture.sessions import (
    Counters,
    Session,
    active_session,
    after_a_step,
    before_training_goes_on,
    catches_up_before_steps,
    close_without_summary,
    find_losses,
    forget_choices,
    graft,
    has_begun,
    is_watched,
    leaves_out,
    prints_messages,
    record_into,
    see_called_parts,
    sharing_names,
    start,
    start_unasked,
    state_command,
    summary_line,
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
    "close_without_summary",
    "find_losses",
    "forget_choices",
    "graft",
    "has_begun",
    "is_watched",
    "leaves_out",
    "named_leaves",
    "named_members",
    "paused",
    "print_tensor",
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
    "unwrapped",
]
