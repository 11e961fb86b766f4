"""Reads the metadata of a node in a compiler's graph: its operation, module and line of code.

Dynamo and AOT note in `node.meta` which module and line a node comes from, which autograd node it
belongs to, and which operation it was before decomposition.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

from torch.fx import Node

from anchorlib.capture.tracing.code_places import is_torchs
from anchorlib.capture.tracing.schemas import facts_of
from anchorlib.torch_private import CHILDREN, Overload

__all__ = ["CLOSURE", "ITSELF", "ModulePath", "NodeFacts", "facts_of_node", "op_name"]

_SUMMED: Final = "is_gradient_acc"
_ROOT: Final = re.compile(r"(L|G)\['(\w+)'\]")
_LINK: Final = re.compile(r"\._modules\['([^']+)'\]|\[['\"]?([^\]'\"]+)['\"]?\]|\.([^.\[]+)")
_HOOKED: Final = re.compile(
    r"\._forward\w*_hooks\w*\[list\(dict\.keys\([^()]*\)\)\[\d+\]\]\._module\(\)"
)
"""A detour in a path that dynamo wrote: a hook of anchorlib's leads back to the module it is on."""
_FRAME: Final = re.compile(r'^ *File "([^"\n]+)", line ([0-9]+)', re.MULTILINE)


CLOSURE: Final = "__closure__"
"""The first link of a path, of three, to a module held in the closure of a function of torch's."""


class ModulePath(NamedTuple):
    """How dynamo reached a module: from a variable, down by attributes and items.

    of_globals: whether the variable is a global one; else it is a local one. root: the variable's
        name. path: the names of attributes and the keys or indices of items, one after the other;
        empty where the variable is the module itself.
    """

    of_globals: bool
    root: str
    path: tuple[str, ...]

    @property
    def inside(self) -> tuple[str, ...]:
        """The part of `path` that begins below the module that was given to `torch.compile`.

        That is all of it, unless dynamo has reached the module through a function's closure.
        """
        return self.path[3:] if self.path[:1] == (CLOSURE,) else self.path


ITSELF: Final = ModulePath(of_globals=False, root="self", path=())
"""The path of the module whose forward was compiled: its `self`, not in dynamo's module stack."""


class NodeFacts(NamedTuple):
    """The facts about one node of a graph, from its metadata.

    module: how the module is reached that ran the node. where: the node's line of user code, as
        "FILE:LINE", or "". seq: the number of the autograd node to which it belongs; None where AOT
        gave none. is_forward, is_backward: whether AOT marks the node as part of the forward, or of
        the backward, of its joint graph. is_summing: whether the node adds two gradients. origin:
        the operation from which the node was decomposed; "" where it was not decomposed.
    """

    module: ModulePath
    where: str
    seq: int | None
    is_forward: bool
    is_backward: bool
    is_summing: bool
    origin: str


def facts_of_node(node: Node) -> NodeFacts:
    """Return the facts that are in the metadata of `node`.

    A sum of gradients, which has no metadata, gets those of the gradient that was added last.
    """
    sums = bool(node.meta.get(_SUMMED))
    # AOT has no metadata for a sum of gradients. As in eager code, the sum counts as part of the
    # operation that made the gradient which was added last.
    meta = node.all_input_nodes[-1].meta if sums and node.all_input_nodes else node.meta
    tag = meta.get("partitioner_tag")
    stack = meta.get("fwd_nn_module_stack") or meta.get("nn_module_stack")
    before = meta.get("original_aten")
    origin = "" if before is None or sums else op_name(before)
    return NodeFacts(
        _module_path(next(reversed(stack.values()))[0]) if stack else ITSELF,
        _where(meta.get("fwd_stack_trace") or meta.get("stack_trace") or ""),
        meta.get("seq_nr"),
        tag == "is_forward",
        tag == "is_backward" or bool(meta.get("autograd_backward")),
        sums,
        "" if origin == op_name(node.target) else origin,
    )


def op_name(target: Any) -> str:
    """Return the name of the function that a node calls, as traces spell it: `aten.add.Tensor`.

    target: the function, such as an operation of torch.
    """
    if isinstance(target, Overload):
        return facts_of(target).name
    return str(getattr(target, "__name__", target))


@lru_cache(4096)
def _module_path(text: str) -> ModulePath:
    """Return the path to a module that dynamo gives as a text.

    Such a text is `L['self']._modules['blocks'][0].fc1`: `L` stands for local variables, `G` for
    global ones. For a text of another form, ITSELF is returned: the path of the module whose
    forward was compiled.
    """
    detours = 1
    while detours:  # a detour may name the modules on its way by detours
        text, detours = _HOOKED.subn("", text)
    root = _ROOT.match(text)
    if root is None:
        return ITSELF
    links = ["".join(groups) for groups in _LINK.findall(text[root.end() :])]
    return ModulePath(root[1] == "G", root[2], tuple(one for one in links if one != CHILDREN))


@lru_cache(4096)
def _where(trace: str) -> str:
    """Return the innermost line outside torch in the text of a stack trace, as "FILE:LINE".

    Return "" if all lines are torch's.
    """
    for file, line in reversed(_FRAME.findall(trace)):
        if not is_torchs(file):
            return f"{file.rpartition('/')[2]}:{line}"
    return ""
