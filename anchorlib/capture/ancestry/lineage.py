"""Lineage: from which tensors and parameters a value was computed, and by which operations.

    tanh1 ── TanhBackward0 ── fc1 ── AddmmBackward0 ┬ fc1.bias
                                                    ├ (data: autograd does not follow it)
                                                    └ TBackward0 ── fc1.weight

At an anchored tensor the autograd graph is walked back to the nearest anchored tensors before it.
The walk is made in the first two steps in which the tensor's site (its name, phase, pass, call and
shape) occurs, and again after another name is anchored for the first time or a model is watched.
Every other observation costs one dict lookup. The result is recorded as `Edges`.

`marks` describes how a walk recognizes an anchored tensor.

Only edges between forward values are recorded: each says from which tensors (its parents) a value
was computed. The parents of gradients, updates and optimizer state follow from those edges: see
`anchorlib.diagnosis.causes.Lineage`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import torch

from anchorlib.capture.ancestry.marks import Marks
from anchorlib.capture.ancestry.walk import Ancestry, Given, Walk
from anchorlib.capture.counting import CallCoordinates
from anchorlib.capture.naming import NamedMembers
from anchorlib.capture.recording import NameStreams
from anchorlib.capture.tensors import known_sizes
from anchorlib.names import escape
from anchorlib.record import BUFFER, Edges
from anchorlib.torch_private import is_wrapped

__all__ = ["LineageTracker"]

_log = logging.getLogger("anchorlib")

_MAX_SITES: Final = 1 << 16  # sites walked from; with more, shapes or passes change without end
_NEVER: Final = -1  # equals no generation, so the site is looked at again

Site = tuple[str, str, int, int, tuple[int, ...]]  # name, phase, pass, call, shape
Here = tuple[tuple[object, ...], torch.Size]  # pass, call and phase; shape


class LineageTracker:
    """Finds from what each anchored tensor of one session was computed.

    tell: called with the edges of a tensor (see `anchorlib.record.Edges`), if they were not given
        to it before.
    """

    def __init__(self, tell: Callable[[Edges], None]) -> None:
        self._tell = tell
        self.marks = Marks()
        self._names: set[str] = set()
        self._buffers: set[tuple[str, str]] = set()
        self._generation = 0  # grows with the anchored names: each site is then walked from anew
        self._seen: dict[Site, tuple[int, int]] = {}  # generation and step of the last walk
        self._stated: dict[tuple[Any, ...], int] = {}
        self._warned = False

    def know(self, parts: NamedMembers) -> None:
        """Learn a watched model's parameters by name, so that walks end at them."""
        self.marks.know(parts)
        self._generation += 1

    def see(  # noqa: PLR0913  # one call an observation
        self,
        plan: NameStreams,
        x: torch.Tensor,
        at: CallCoordinates,
        node: Any,
        *,
        grad: bool = True,
        shape: torch.Size | None = None,
        given: Given | None = None,
    ) -> None:
        """Find from what `x`, observed at `at`, was computed; mark `x`, so that walks end at `x`.

        plan: what is recorded of `x`, with its name. node: the autograd node that made `x`; None
            for a leaf or a tensor without a graph. grad: whether the gradient of `x` may be
            recorded. shape: the shape of `x`; None if the caller does not know it. given: the
            module whose output `x` is, with the arguments of its call; None for other tensors.

        Does nothing for a tensor of which neither value nor gradient is recorded, or that a
        functorch transform wraps. Raises nothing.
        """
        try:
            if shape is None and not x.is_nested:
                shape = x.shape
            here = None if shape is None else (at[1:], shape)
            known = here is not None and plan.sites.get(here) == self._generation
            if not (known or self._visit(plan, x, at, here, given, grad=grad)):
                return
            self.marks.mark(x, node, plan.name, at)
        except Exception as fault:  # noqa: BLE001  # inside a user's forward: training goes on
            self._warn(plan.name, fault)

    def see_buffer(self, name: str, at: CallCoordinates, shape: tuple[int, ...]) -> None:
        """State, once for each phase, that it is unknown what the buffer `name` was computed from.

        To state is to call `tell` with edges. A buffer is recorded when a pass begins, and no
        autograd graph shows what wrote the buffer.
        """
        if (name, at.phase) not in self._buffers:
            self._buffers.add((name, at.phase))
            self._tell(Edges(name, at.phase, 0, 0, shape, at.step, missing=(BUFFER,)))

    def _visit(
        self,
        plan: NameStreams,
        x: torch.Tensor,
        at: CallCoordinates,
        here: Here | None,
        given: Given | None,
        *,
        grad: bool,
    ) -> bool:
        """Walk back from `x` unless that was done before; return whether `x` is to be marked.

        Walks are counted by site: name, phase, pass, call and shape. A walk is made in the first
        two steps of a site, and again after another name was anchored or a model was watched.
        False is returned where neither value nor gradient of `x` is recorded, or where a functorch
        transform wraps `x`.

        here: the key under which `plan` remembers that the site needs no walk; None for a nested
            tensor, since each has another size, and remembering all of them would never end.

        The other arguments are those of `see`.
        """
        _step, pass_index, call, phase = at
        site = (plan.name, phase, pass_index, call, known_sizes(x))
        seen = self._seen.get(site)
        if seen is not None and seen[0] == self._generation:
            if here is not None:
                plan.sites[here] = self._generation
            return True
        follows = grad and bool(plan.streams("grad", phase))
        if is_wrapped(x) or not (follows or plan.streams("value", phase)):
            return False
        self._look(site, x, at, given, follows=follows)
        self.marks.mark_memory(x, name=plan.name, at=at)
        return True

    def _look(
        self,
        site: Site,
        x: torch.Tensor,
        at: CallCoordinates,
        given: Given | None,
        *,
        follows: bool,
    ) -> None:
        name = site[0]
        if name not in self._names:
            self._names.add(name)
            self._generation += 1
        seen = self._seen.get(site)
        # A site seen twice in one step is one tensor anchored in two modes: its edges are stated.
        again = seen is not None and seen[1] == at.step
        if again or (seen is None and len(self._seen) >= _MAX_SITES):
            return
        # Two steps are looked at: a tensor carried from step to step is no parent in the first.
        self._seen[site] = (_NEVER if seen is None else self._generation, at.step)
        ancestry = Walk(self.marks, name, at, given).back_from(x)
        self._tell_new(site, at.step, ancestry, follows=follows)

    def _tell_new(self, site: Site, step: int, ancestry: Ancestry, *, follows: bool) -> None:
        """Call `tell` with what the tensor at a site was computed from, if that was not told yet.

        A site is a name, phase, pass, call and shape. `ancestry` and `follows` are compared with
        what was told last for the site; if nothing was, with what was told first for its name,
        phase and call.

        step: the step in which `ancestry` was found, from which on it holds. ancestry: from what
            the tensor was computed. follows: whether the gradient of the tensor is recorded.
        """
        name, phase, pass_index, call, shape = site
        first, content = (name, phase, call), hash((ancestry, follows))
        if self._stated.get(site, self._stated.get(first)) == content:
            return
        self._stated[site if first in self._stated else first] = content
        edges = ancestry._asdict()
        self._tell(Edges(name, phase, pass_index, call, shape, step, **edges, grad=follows))

    def _warn(self, name: str, fault: Exception) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "anchorlib: the tensors from which %s was computed are not known: %r",
                escape(name),
                fault,
            )

    def close(self) -> None:
        """Remove the session's marks from tensors that outlive the session."""
        self.marks.close()
