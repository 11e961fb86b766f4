"""Private names of autograd: the backward that runs, and the nodes of its graph."""

from __future__ import annotations

import ctypes
import sys
from types import CodeType, GetSetDescriptorType
from typing import Any, Final

import torch
from torch.utils import checkpoint

from anchorlib.torch_private.door import (
    AffectedPrograms,
    is_a,
    is_attribute,
    later,
    private,
    tell,
)
from anchorlib.torch_private.frames import frame_code

__all__ = [
    "CHECKPOINT_RECOMPUTES",
    "ENGINE_CALL",
    "RAW_SAVED",
    "SAVED",
    "NodeContext",
    "compiled_outputs",
    "current_node",
    "engine_code",
    "graph_task",
    "is_passed_on",
    "leaf_of",
    "next_sequence",
    "pass_on",
    "passed_on",
    "saved_getters",
    "sequence_number",
]

_AGAIN: Final = (
    "tensors that activation checkpointing recomputes are recorded again, as further calls"
)

graph_task = private(
    "torch._C._current_graph_task_id",
    "the number of the backward that runs in this thread, -1 outside one",
    _AGAIN,
    instead=lambda: -1,
)
current_node = private(
    "torch._C._current_autograd_node",
    "the node of autograd's graph that runs in this thread",
    "gradients of tensors that reentrant checkpointing recomputes are not recorded",
    instead=lambda: None,
)
next_sequence = private(
    "torch.autograd._get_sequence_nr",
    "the number that the next node of this thread's graph will have",
    "gradients of tensors that reentrant checkpointing recomputes are not recorded",
    instead=lambda: 0,
)

_number_of: Any = private(
    "torch._C._FunctionBase._sequence_nr",
    "the sequence number of a node, as its thread counts nodes",
    "the order of the operations between two anchors is not known",
    kind=is_attribute,
)


def sequence_number(node: Any) -> int:
    """Return the number that autograd gave a node; -1 if unknown.

    Each thread numbers the nodes that it makes, in ascending order.
    """
    # Looked up on the type: a user may set any attribute on a custom Function's node.
    return -1 if _number_of is None else int(type(node)._sequence_nr(node))


# Objects that a thread passes on to the threads in which torch runs a backward that it calls.
_PHASES: Final = "records made by a backward in a thread of torch's carry the phase `train`"
is_passed_on = private(
    "torch._C._is_key_in_tls",
    "whether the thread that called this backward has passed on an object",
    _PHASES,
    instead=lambda _key: False,
)
passed_on = private(
    "torch._C._get_obj_in_tls",
    "the object that the thread that called this backward has passed on",
    _PHASES,
    instead=lambda _key: None,
)


def _keeping_stash() -> Any:
    """Return torch's function that passes an object on to the threads in which backwards run.

    Return None where that function does not keep the object alive: in torch 2.6 it takes no
    reference to the object, and yet releases one afterwards.
    """
    stash, thing = torch._C._stash_obj_in_tls, object()
    before = sys.getrefcount(thing)
    stash("anchorlib.probe", thing)
    if sys.getrefcount(thing) > before:
        return stash
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))  # the reference that torch will release
    return None


pass_on = private(
    "torch._C._stash_obj_in_tls",
    "passes an object on to the threads of the backwards that this thread calls",
    _PHASES,
    instead=lambda _key, _thing: None,
    since="2.7",
    probe=_keeping_stash,
)


class _Nothing:
    """Replaces the class of `ctx` objects where this torch lacks it; it has no instances."""


NodeContext: Any = private(
    "torch._C._FunctionBase",
    "the class of the `ctx` of a custom Function",
    "all calls inside a custom Function are kept for a checkpoint that may repeat them",
    instead=_Nothing,
    kind=is_a(type),
)

# -- Python frames that tell which part of torch runs

CHECKPOINT_RECOMPUTES: Final = "recompute_fn"
"""The name of the function in which torch's checkpointing runs a forward again."""

ENGINE_CALL: Final = "_engine_run_backward"
"""The name of the function in which torch's Python calls autograd's engine."""

_engine = frame_code(
    f"torch.autograd.graph.{ENGINE_CALL}",
    "the frame below which a backward runs",
    _AGAIN,
    AffectedPrograms.EAGER,
)


def engine_code() -> CodeType:
    """Return the code object of the function in which torch's Python calls autograd's engine."""
    return _engine


def _has_recompute() -> object:
    waiting = [thing.__code__ for thing in vars(checkpoint).values() if hasattr(thing, "__code__")]
    while waiting:
        code = waiting.pop()
        if code.co_name == CHECKPOINT_RECOMPUTES:
            return code
        waiting += [one for one in code.co_consts if isinstance(one, CodeType)]
    return None


private(
    f"torch.utils.checkpoint.{CHECKPOINT_RECOMPUTES}",
    "the frame in which activation checkpointing runs a forward again",
    "calls that it repeats are searched for among the calls made without gradients",
    probe=_has_recompute,
    kind=is_a(CodeType),
)

# -- nodes


def leaf_of(node: Any) -> torch.Tensor | None:
    """Return the leaf tensor whose gradient `node` adds up; None for a node of another kind."""
    if type(node).__name__ != "AccumulateGrad":
        return None
    leaf = getattr(node, "variable", None)
    return leaf if isinstance(leaf, torch.Tensor) else None


private(
    "torch._C._functions.AccumulateGrad.variable",
    "the parameter for which a node adds up gradients",
    "which parameters a value was computed from is not known",
    kind=is_attribute,
)

SAVED: Final = "_saved_"
RAW_SAVED: Final = "_raw_saved_"


def saved_getters(node: Any) -> dict[str, Any]:
    """Return the getters of the arguments that a node saved for backward, by name (`_saved_eps`).

    A getter is a descriptor: its `__get__(node)` returns the argument. The getters are taken from
    the dict of the node's type, as a custom Function's node may have any attribute with such a
    name.
    """
    return {
        name: getter
        for name, getter in vars(type(node)).items()
        if type(getter) is GetSetDescriptorType and name.startswith((SAVED, RAW_SAVED))
    }


def _saves() -> object:
    with torch.inference_mode(False), torch.enable_grad():  # the import may be inside `no_grad`
        x = torch.ones(1, device="cpu", requires_grad=True)
        kept = saved_getters(torch.nn.functional.gelu(x).grad_fn)
    return {f"{SAVED}approximate", f"{RAW_SAVED}self"} <= kept.keys() or None


private(
    f"Node.{SAVED}*, Node.{RAW_SAVED}*",
    "the arguments of an operation beside its tensors, as autograd has saved them",
    "arguments of the operations between two anchors are not recorded",
    probe=_saves,
    kind=is_a(bool),
)


_FORWARD: Final = "_forward_cls"


def compiled_outputs(node: Any) -> int | None:
    """Return how many outputs of the compiled code that made `node` require gradients.

    Returns 0 if `node` is of a Function that is not torch's, and only has the same name; None if
    the number is unknown. Warns, once, if torch has moved the name by which the number is found.
    """
    forward: Any = getattr(type(node), _FORWARD, None)
    if _function.fitting(forward) is None:
        tell(_function)
        return None
    if not forward.__module__.startswith("torch."):
        return 0
    try:
        return sum(bool(one.requires_grad) for one in forward.metadata.output_info)
    except (AttributeError, TypeError):
        return None


def _knows_its_forward() -> object:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(_ctx: Any, *gradients: Any) -> Any:
            return gradients[0] * 2

    made = Twice.apply(torch.ones(1, requires_grad=True))  # type: ignore[no-untyped-call]
    return getattr(type(made.grad_fn), _FORWARD, None)


_function = later(
    f"Node.{_FORWARD}",
    "the class of a Function, which has the number of outputs of compiled code",
    "each gradient of an output of compiled code is reported as possibly partial",
    probe=_knows_its_forward,
    kind=is_a(type),
)
