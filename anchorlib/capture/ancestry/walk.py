"""The walk from a tensor back to the nearest anchored tensors and parameters before it.

The walk follows autograd's graph. From a tensor without a graph, the walk goes to the anchored
tensor in the same memory, or to the arguments of the module that returned the tensor. A mark is
what shows that a tensor is anchored: see `marks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch

from anchorlib.capture.ancestry.marks import Mark, Marks
from anchorlib.capture.ancestry.saved_arguments import arguments
from anchorlib.capture.counting import CallCoordinates
from anchorlib.capture.naming import named_leaves
from anchorlib.capture.tensors import node_name
from anchorlib.record import Parent
from anchorlib.torch_private import is_wrapped, leaf_of, sequence_number

__all__ = ["Ancestry", "Given", "Walk"]

_MAX_NODES: Final = 10_000  # nodes of one walk

# Reentrant checkpointing: the operations inside have no graph, their parameters are no inputs.
_OPAQUE: Final = "CheckpointFunctionBackward"

# A module that was called, and its arguments. A plain tuple, since every call makes a new one.
Given = tuple[torch.nn.Module, tuple[Any, ...], Mapping[str, Any]]


class Ancestry(NamedTuple):
    """From what a tensor was computed, as a walk found it; the fields are those of `Edges`."""

    parents: tuple[Parent, ...] = ()
    ops: tuple[str, ...] = ()
    inputs: tuple[tuple[int, ...], ...] = ()
    missing: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


class Walk:
    """A walk from a tensor back to the nearest marked tensors and parameters.

    marks: how anchored tensors are recognized. name, at: the name and coordinates of the tensor
        from which the walk begins. given: the module whose output that tensor is, with the
        positional and keyword arguments of its call; None for other tensors.
    """

    def __init__(
        self, marks: Marks, name: str, at: CallCoordinates, given: Given | None = None
    ) -> None:
        self._marks = marks
        self._given = given
        self._own = (name, at)
        self._parents: dict[Parent, int] = {}
        self._missing: dict[str, None] = {}

    def back_from(self, x: torch.Tensor) -> Ancestry:
        """Return the nearest anchored tensors and parameters, and the operations from them to `x`.

        `Ancestry.missing` has the reasons why tensors or parameters may be missing; it is empty if
        none are. If the walk meets more than 10,000 operations, it ends there, and no operations
        are returned.
        """
        root: Any = x.grad_fn
        if root is None:
            return self._leaf(x) if x.requires_grad else self._unfollowed(x)
        same = self._marked(root, x.output_nr)
        if same is not None:
            return Ancestry((same,))
        nodes = self._collect(root)
        if len(nodes) > _MAX_NODES:
            self._missing[f"more than {_MAX_NODES} operations lead here"] = None
            return Ancestry(tuple(self._parents), missing=tuple(self._missing))
        # In the order of backward, which runs the newest node first.
        ordered = [root, *sorted(nodes.keys() - {root}, key=_newest_first)]
        place = {node: number for number, node in enumerate(ordered)}
        inputs = [
            tuple(source if isinstance(source, int) else place[source] for source in nodes[node])
            for node in ordered
        ]
        ops = tuple(map(node_name, ordered))
        if _OPAQUE in ops:
            self._missing[f"{_OPAQUE} hides what is inside"] = None
        given = self._given
        for tensor in _tensors(given) if given is not None and _is_leaf(given) else ():
            if not tensor.requires_grad and (held := self._held(tensor)) is not None:
                self._parents.setdefault(held[0], len(self._parents) + 1)
        of_each = tuple(map(arguments, ordered))
        return Ancestry(
            tuple(self._parents),
            ops,
            tuple(inputs),
            tuple(self._missing),
            of_each if any(of_each) else (),
        )

    def _leaf(self, x: torch.Tensor) -> Ancestry:
        """Return the ancestry of a leaf: no operations, and one parent or none.

        The parent is the leaf itself under another name: that of an anchor or a parameter.
        """
        mark = self._marks.mark_of_leaf(x)
        parent = None if mark is None or mark[1] == self._own[0] else self._parent(mark, x)
        name = self._marks.parameter_name(x)
        if parent is None and name not in (None, self._own[0]):
            parent = Parent(name, None)
        return Ancestry(() if parent is None else (parent,))

    def _unfollowed(self, x: torch.Tensor) -> Ancestry:
        """Return the ancestry of `x`, a tensor without a graph.

        The parent of `x` is the anchored tensor that has the memory of `x` (under another name,
        detached, or viewed). If there is none, and `x` is the output of a module, the parents are
        those that `_made_by` finds.
        """
        held = self._held(x)
        if held is None:
            given = self._given
            return Ancestry(missing=("it has no graph",)) if given is None else self._made_by(given)
        same, how = held
        return Ancestry((same,), (how,), ((0,),)) if how else Ancestry((same,))

    def _made_by(self, given: Given) -> Ancestry:
        """Return the ancestry of a module's output that has no graph.

        Its parents are the anchored tensors among the module's arguments, and the module's own
        parameters. given: the module, with the arguments of its call.
        """
        for tensor in _tensors(given):
            parent = self._parent_of(tensor)
            if parent is None:
                self._missing["what it was given is not anchored"] = None
            else:
                self._parents.setdefault(parent, len(self._parents) + 1)
        for parameter in given[0].parameters(recurse=False):
            name = self._marks.parameter_name(parameter)
            if name is not None:
                self._parents.setdefault(Parent(name, None), len(self._parents) + 1)
        if not _is_leaf(given):
            self._missing["what happens inside is not followed"] = None
        op = f"{type(given[0]).__name__}.forward"
        return Ancestry(tuple(self._parents), (op,), ((0,),), tuple(self._missing))

    def _parent_of(self, x: torch.Tensor) -> Parent | None:
        """Return the anchored tensor or parameter that `x` is or shares memory with; else None."""
        if x.grad_fn is not None:
            return self._marked(x.grad_fn, x.output_nr)
        if x.requires_grad:
            return next(iter(self._leaf(x).parents), None)
        held = self._held(x)
        return None if held is None else held[0]

    def _held(self, x: torch.Tensor) -> tuple[Parent, str] | None:
        """Return the anchored tensor in whose memory `x` lies, and how `x` differs from it.

        `x` differs by "detach" or "view"; "" says that it does not differ. None is returned where
        no anchored tensor has the memory of `x`. It is also returned where the anchored tensor is
        the one from which the walk began, or has its name and was observed in another pass.
        """
        known = None if is_wrapped(x) else self._marks.mark_of_memory(x)
        if known is None:
            return None
        mark, how = known
        _, name, there = mark
        own, here = self._own
        # A batch in the same memory in each pass was not computed from that of the pass before.
        if name == own and (there == here or there[:2] != here[:2]):
            return None
        return self._parent(mark, None), how

    def _collect(self, root: Any) -> dict[Any, list[Any]]:
        """Return all nodes from `root` back to the parents, each with the list of its inputs.

        root: the autograd node that made the tensor from which the walk begins.
        An input is another node, or a number as in `Edges.inputs`: -k for the k-th parent, 0 for a
        value that autograd does not follow. The search ends once more than 10,000 nodes are found.
        The parents found are added to `_parents`, and the reasons why others may be missing to
        `_missing`.
        """
        nodes: dict[Any, list[Any]] = {}
        waiting = [root]
        while waiting and len(nodes) <= _MAX_NODES:
            node = waiting.pop()
            if node not in nodes:
                sources = nodes[node] = [self._source(*edge) for edge in node.next_functions]
                waiting += [source for source in sources if not isinstance(source, int)]
        return nodes

    def _source(self, node: Any, number: int) -> Any:
        if node is None:
            return 0
        parent = self._marked(node, number)
        if parent is None:
            leaf = leaf_of(node)
            if leaf is None:
                return node
            name = self._marks.parameter_name(leaf)
            if name is None:
                self._missing["a leaf that is not anchored"] = None
                return 0
            parent = Parent(name, None)
        return -self._parents.setdefault(parent, len(self._parents) + 1)

    def _marked(self, node: Any, number: int) -> Parent | None:
        leaf = leaf_of(node)
        mark = self._marks.mark_of(node, number) if leaf is None else self._marks.mark_of_leaf(leaf)
        return None if mark is None or mark[1:] == self._own else self._parent(mark, leaf)

    def _parent(self, mark: Mark, leaf: torch.Tensor | None) -> Parent:
        _, name, there = mark
        here = self._own[1]
        if (there.step, there.pass_index, there.phase) == (here.step, here.pass_index, here.phase):
            return Parent(name, there.call)
        if leaf is not None:  # a leaf lasts, so the step in which it was anchored means nothing
            return Parent(name, None)
        phase = "" if there.phase == here.phase else there.phase
        return Parent(name, there.call, here.step - there.step, there.pass_index, phase)


def _tensors(given: Given) -> list[torch.Tensor]:
    _, args, kwargs = given
    return [tensor for _, tensor in named_leaves("", [*args, *kwargs.values()])]


def _is_leaf(given: Given) -> bool:
    """Return whether the called module in `given` has no submodules."""
    return next(given[0].children(), None) is None


def _newest_first(node: Any) -> int:
    return -sequence_number(node)
