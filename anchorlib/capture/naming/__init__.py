"""Names of the parts of a model and of its optimizer's state, and the choice of some of them."""

from anchorlib.capture.naming.choice import Choice, WatchArguments
from anchorlib.capture.naming.optimizer_state import state_values, tensor_of, why_no_tensor
from anchorlib.capture.naming.structure import (
    NamedMembers,
    has_forward,
    named_leaves,
    named_members,
    state_keys,
    tensor_kinds,
    unwrapped,
)

__all__ = [
    "Choice",
    "NamedMembers",
    "WatchArguments",
    "has_forward",
    "named_leaves",
    "named_members",
    "state_keys",
    "state_values",
    "tensor_kinds",
    "tensor_of",
    "unwrapped",
    "why_no_tensor",
]
