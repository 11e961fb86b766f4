"""Lineage: from which tensors and parameters a value was computed, and by which operations.

    tanh1 ── TanhBackward0 ── fc1 ── AddmmBackward0 ┬ fc1.bias
                                                    ├ (data: autograd does not follow it)
                                                    └ TBackward0 ── fc1.weight

At an anchored tensor the graph is walked back to the nearest anchored tensors before it. The walk
is made in the first two steps in which its name, phase, pass, call and shape occur; later
observations cost one dict lookup.

A walk recognizes an anchored tensor by a mark on its autograd node, in the dict that torch keeps
there for anomaly mode: the mark is freed with the node, and nothing here keeps a tensor or a graph
alive. A leaf has no lasting node, so its mark is a hook on the leaf.

A tensor without a graph is recognized by its memory (see `storages`) or by the module that
returned it: a frozen layer, or one under `no_grad`, made its output from its arguments.

Only forward edges are recorded. The parents of gradients, updates and optimizer state follow from
them: see `anchorlib.diagnosis.causes.Lineage`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from weakref import ref

import torch

from anchorlib.capture.ancestry.saved_arguments import arguments
from anchorlib.capture.counting import At
from anchorlib.capture.naming import Parts, named_leaves
from anchorlib.capture.own_hooks import Hung, hang_on_leaf
from anchorlib.capture.recording import Plan
from anchorlib.capture.tensors import Storages, node_name
from anchorlib.names import escape
from anchorlib.record import BUFFER, Edges, Parent
from anchorlib.torch_private import (
    hooks_are_known,
    hooks_of,
    is_wrapped,
    leaf_of,
    sequence_number,
)

__all__ = ["Given", "LineageTracker"]

_log = logging.getLogger("anchorlib")

_MARK: Final = "anchorlib"  # a key in a node's metadata
_MAX_SITES: Final = 1 << 16  # sites walked from; with more, shapes or passes change without end
_MAX_NODES: Final = 10_000  # nodes of one walk
_NEVER: Final = -1  # equals no generation, so the site is looked at again

# Reentrant checkpointing: the operations inside have no graph, their parameters are no inputs.
_OPAQUE: Final = "CheckpointFunctionBackward"

Owner = tuple[object, str, At]  # token of the marking tracker, the tensor's name, its coordinates
Site = tuple[str, str, int, int, tuple[int, ...]]  # name, phase, pass, call, shape
Here = tuple[tuple[object, ...], torch.Size]  # pass, call and phase; shape
# A module that was called, and its arguments. A plain tuple, since every call makes a new one.
Given = tuple[torch.nn.Module, tuple[Any, ...], Mapping[str, Any]]


class Ancestry(NamedTuple):
    """The result of a walk: fields of `Edges`."""

    parents: tuple[Parent, ...] = ()
    ops: tuple[str, ...] = ()
    inputs: tuple[tuple[int, ...], ...] = ()
    missing: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


class LineageTracker:
    """Walks the graphs of one session, and calls `tell` with edges that were not told before."""

    def __init__(self, tell: Callable[[Edges], None]) -> None:
        self._tell = tell
        self.token = object()  # tells the marks of this session from those of others
        self._names: set[str] = set()
        self._parameters: dict[int, tuple[ref[Parts], str]] = {}  # by id
        self.storages = Storages()
        self._buffers: set[tuple[str, str]] = set()
        self._generation = 0  # grows with the anchored names: each site is then walked from anew
        self._seen: dict[Site, tuple[int, int]] = {}  # generation and step of the last walk
        self._told: dict[tuple[Any, ...], int] = {}
        self._leaves: list[Hung] = []
        self._warned = False

    def know(self, parts: Parts) -> None:
        """Add the names of a model's parameters."""
        # The weak reference is to the parts: torch refuses to swap a tensor that has one.
        held = ref(parts)
        self._parameters |= {id(one): (held, name) for name, one in parts.parameters.items()}
        self._generation += 1

    def parameter_name(self, leaf: object) -> str | None:
        """The name of the parameter `leaf`; None where it belongs to no watched model."""
        held, name = self._parameters.get(id(leaf), (None, ""))
        parts = None if held is None else held()
        return name if parts is not None and parts.parameters.get(name) is leaf else None

    def see(  # noqa: PLR0913  # one call an observation
        self,
        plan: Plan,
        x: torch.Tensor,
        at: At,
        node: Any,
        *,
        grad: bool = True,
        shape: torch.Size | None = None,
        given: Given | None = None,
    ) -> None:
        """Find what `x`, made by `node` and observed at `at`, was computed from; mark `x`.

        grad: whether the gradient of `x` is recorded. shape: that of `x`, if the caller has it.
        given: the module whose output `x` is, with its arguments. Raises nothing.
        """
        try:
            here = (at[1:], x.shape if shape is None else shape)
            known = plan.sites.get(here) == self._generation
            if not (known or self._visit(plan, x, at, here, given, grad=grad)):
                return
            if node is not None:
                number = x.output_nr
                node.metadata[(_MARK, number) if number else _MARK] = (self.token, plan.name, at)
            elif x.requires_grad and hooks_are_known:
                self._mark_leaf(x, (self.token, plan.name, at))
        except Exception as fault:  # noqa: BLE001  # inside a user's forward: training goes on
            self._warn(plan.name, fault)

    def see_buffer(self, name: str, at: At, shape: tuple[int, ...]) -> None:
        """Tell once that a buffer, recorded when a pass begins, has no known parents."""
        if (name, at.phase) not in self._buffers:
            self._buffers.add((name, at.phase))
            self._tell(Edges(name, at.phase, 0, 0, shape, at.step, missing=(BUFFER,)))

    def _visit(
        self,
        plan: Plan,
        x: torch.Tensor,
        at: At,
        here: Here,
        given: Given | None,
        *,
        grad: bool,
    ) -> bool:
        """Walk from a site that may have edges not told yet; whether `x` is to be marked."""
        _step, pass_index, call, phase = at
        site = (plan.name, phase, pass_index, call, tuple(x.shape))
        seen = self._seen.get(site)
        if seen is not None and seen[0] == self._generation:
            plan.sites[here] = self._generation
            return True
        follows = grad and bool(plan.streams("grad", phase))
        if is_wrapped(x) or not (follows or plan.streams("value", phase)):
            return False
        self._look(site, x, at, given, follows=follows)
        self.storages.note(x, (self.token, plan.name, at))
        return True

    def _look(
        self, site: Site, x: torch.Tensor, at: At, given: Given | None, *, follows: bool
    ) -> None:
        name = site[0]
        if name not in self._names:
            self._names.add(name)
            self._generation += 1
        seen = self._seen.get(site)
        # A site seen twice in one step is one tensor anchored in two modes: its edges are told.
        again = seen is not None and seen[1] == at.step
        if again or (seen is None and len(self._seen) >= _MAX_SITES):
            return
        # Two steps are looked at: a tensor carried from step to step is no parent in the first.
        self._seen[site] = (_NEVER if seen is None else self._generation, at.step)
        ancestry = _Walk(self, name, at, given).back_from(x)
        self._tell_new(site, at.step, ancestry, follows=follows)

    def _tell_new(self, site: Site, step: int, ancestry: Ancestry, *, follows: bool) -> None:
        """Tell the edges of a site, unless they equal those last told for it, or for its call."""
        name, phase, pass_index, call, shape = site
        first, content = (name, phase, call), hash((ancestry, follows))
        if self._told.get(site, self._told.get(first)) == content:
            return
        self._told[site if first in self._told else first] = content
        told = ancestry._asdict()
        self._tell(Edges(name, phase, pass_index, call, shape, step, **told, grad=follows))

    def owner(self, node: Any, number: int) -> Owner | None:
        """The anchored tensor of this session that output `number` of `node` is, or None."""
        return self._ours(node.metadata.get(_key(number)))

    def leaf_owner(self, leaf: torch.Tensor) -> Owner | None:
        """The anchored tensor of this session that `leaf` is, or None."""
        return self._ours(next((mark.owner for mark in _leaf_marks(leaf)), None))

    def _ours(self, owner: Owner | None) -> Owner | None:
        return owner if owner is not None and owner[0] is self.token else None

    def _mark_leaf(self, leaf: torch.Tensor, owner: Owner) -> None:
        for mark in _leaf_marks(leaf):
            mark.owner = owner
            return
        if len(self._leaves) >= 64:  # each batch that needs gradients is a new leaf
            self._leaves = [one for one in self._leaves if not one.is_gone]
        self._leaves.append(hang_on_leaf(leaf, _LeafMark(owner)))

    def _warn(self, name: str, fault: Exception) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "anchorlib: the tensors from which %s was computed are not known: %r",
                escape(name),
                fault,
            )

    def close(self) -> None:
        """Remove the marks from leaves that outlive the session."""
        for hung in self._leaves:
            hung.remove()
        self._leaves.clear()
        self.storages.clear()


class _LeafMark:
    """A tensor hook that changes nothing: it marks a leaf as an anchored tensor."""

    __slots__ = ("owner",)

    # Lets torch save an anchored leaf, or send it to other processes, without a warning.
    __torch_unserializable__ = True

    def __init__(self, owner: Owner) -> None:
        self.owner = owner

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        # Compiled autograd would take None to mean that there is no gradient.
        return gradient


class _Walk:
    """One walk from a tensor back to the nearest marked tensors and parameters.

    given: the module whose output the tensor is, with its arguments.
    """

    def __init__(
        self, tracker: LineageTracker, name: str, at: At, given: Given | None = None
    ) -> None:
        self._tracker = tracker
        self._given = given
        self._own = (name, at)
        self._parents: dict[Parent, int] = {}
        self._missing: dict[str, None] = {}

    def back_from(self, x: torch.Tensor) -> Ancestry:
        """The parents of `x`, and the operations between them and `x`."""
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
        told = tuple(map(arguments, ordered))
        return Ancestry(
            tuple(self._parents),
            ops,
            tuple(inputs),
            tuple(self._missing),
            told if any(told) else (),
        )

    def _leaf(self, x: torch.Tensor) -> Ancestry:
        """A leaf was computed from nothing; its parent is the same tensor under another name."""
        owner = self._tracker.leaf_owner(x)
        parent = None if owner is None or owner[1] == self._own[0] else self._parent(owner, x)
        name = self._tracker.parameter_name(x)
        if parent is None and name is not None:
            parent = Parent(name, None)
        return Ancestry(() if parent is None else (parent,))

    def _unfollowed(self, x: torch.Tensor) -> Ancestry:
        """The parent of a tensor without a graph.

        It is another name of an anchored tensor, a detached tensor, or the output of a module.
        """
        held = self._held(x)
        if held is None:
            given = self._given
            return Ancestry(missing=("it has no graph",)) if given is None else self._made_by(given)
        same, how = held
        return Ancestry((same,), (how,), ((0,),)) if how else Ancestry((same,))

    def _made_by(self, given: Given) -> Ancestry:
        """The parents of a module's output without a graph: its arguments and own parameters."""
        for tensor in _tensors(given):
            parent = self._parent_of(tensor)
            if parent is None:
                self._missing["what it was given is not anchored"] = None
            else:
                self._parents.setdefault(parent, len(self._parents) + 1)
        for parameter in given[0].parameters(recurse=False):
            name = self._tracker.parameter_name(parameter)
            if name is not None:
                self._parents.setdefault(Parent(name, None), len(self._parents) + 1)
        if not _is_leaf(given):
            self._missing["what happens inside is not followed"] = None
        op = f"{type(given[0]).__name__}.forward"
        return Ancestry(tuple(self._parents), (op,), ((0,),), tuple(self._missing))

    def _parent_of(self, x: torch.Tensor) -> Parent | None:
        """The anchored tensor or parameter that `x` is."""
        if x.grad_fn is not None:
            return self._marked(x.grad_fn, x.output_nr)
        if x.requires_grad:
            return next(iter(self._leaf(x).parents), None)
        held = self._held(x)
        return None if held is None else held[0]

    def _held(self, x: torch.Tensor) -> tuple[Parent, str] | None:
        """The anchored tensor in whose memory `x` lies, and how `x` differs from it ("" if not)."""
        known = None if is_wrapped(x) else self._tracker.storages.owner(x)
        if known is None or known[0][0] is not self._tracker.token:
            return None
        (_, name, there), how = known
        own, here = self._own
        # A batch in the same memory in each pass was not computed from that of the pass before.
        if name == own and (there == here or there[:2] != here[:2]):
            return None
        return self._parent((known[0][0], name, there), None), how

    def _collect(self, root: Any) -> dict[Any, list[Any]]:
        """Each node back to the parents, with its inputs: nodes, or numbers as `Edges.inputs`."""
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
            name = self._tracker.parameter_name(leaf)
            if name is None:
                self._missing["a leaf that is not anchored"] = None
                return 0
            parent = Parent(name, None)
        return -self._parents.setdefault(parent, len(self._parents) + 1)

    def _marked(self, node: Any, number: int) -> Parent | None:
        leaf = leaf_of(node)
        owner = (
            self._tracker.owner(node, number) if leaf is None else self._tracker.leaf_owner(leaf)
        )
        return None if owner is None or owner[1:] == self._own else self._parent(owner, leaf)

    def _parent(self, owner: Owner, leaf: torch.Tensor | None) -> Parent:
        _, name, there = owner
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
    """Whether the module has no submodules."""
    return next(given[0].children(), None) is None


def _key(number: int) -> object:
    return (_MARK, number) if number else _MARK


def _leaf_marks(leaf: torch.Tensor) -> list[_LeafMark]:
    return [hook for hook in hooks_of(leaf).values() if isinstance(hook, _LeafMark)]


def _newest_first(node: Any) -> int:
    return -sequence_number(node)
