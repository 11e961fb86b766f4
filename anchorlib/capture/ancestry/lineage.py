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
from collections.abc import Callable
from typing import Any, Final
from weakref import ref

import torch

from anchorlib.capture.ancestry.walk import Ancestry, Given, Owner, Walk
from anchorlib.capture.counting import At
from anchorlib.capture.naming import Parts
from anchorlib.capture.own_hooks import Hung, hang_on_leaf
from anchorlib.capture.recording import Plan
from anchorlib.capture.tensors import Storages
from anchorlib.names import escape
from anchorlib.record import BUFFER, Edges
from anchorlib.torch_private import (
    hooks_are_known,
    hooks_of,
    is_wrapped,
)

__all__ = ["LineageTracker"]

_log = logging.getLogger("anchorlib")

_MARK: Final = "anchorlib"  # a key in a node's metadata
_MAX_SITES: Final = 1 << 16  # sites walked from; with more, shapes or passes change without end
_NEVER: Final = -1  # equals no generation, so the site is looked at again

Site = tuple[str, str, int, int, tuple[int, ...]]  # name, phase, pass, call, shape
Here = tuple[tuple[object, ...], torch.Size]  # pass, call and phase; shape


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
        ancestry = Walk(self, name, at, given).back_from(x)
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


def _key(number: int) -> object:
    return (_MARK, number) if number else _MARK


def _leaf_marks(leaf: torch.Tensor) -> list[_LeafMark]:
    return [hook for hook in hooks_of(leaf).values() if isinstance(hook, _LeafMark)]
