"""The parents of one record, from which it was computed, and the search that gathers them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from anchorlib.record import Edges, Parent

__all__ = ["Link", "RecordAncestry", "Search", "Site", "between", "link_to"]

Site = tuple[str, int, int | None]
"""A tensor of one step and phase: name, pass, call; the call is None for a parameter."""


@dataclass(frozen=True, slots=True)
class Link:
    """One parent of a record, that is, a record that it was computed from.

    name, kind: those of the parent's record.
    call: the parent's call; None for a parameter, of which only pass_grads have calls.
    pass_index: the pass in which the parent was made. For a parameter's `value`, the last record at
        or before this pass counts, since values are recorded only where they changed.
    steps_back: how many steps the parent lies before the child.
    phase: the parent's phase; "" where it is the child's phase.
    ops: names of the autograd nodes between the two, in the order in which backward runs them.
    saved: whether the parent is a value that the forward may have saved and that backward may have
        read; the links to the gradients from which backward came are not `saved`.
    """

    name: str
    kind: str
    call: int | None = 0
    pass_index: int = 0
    steps_back: int = 0
    phase: str = ""
    ops: tuple[str, ...] = ()
    saved: bool = False


@dataclass(frozen=True, slots=True)
class RecordAncestry:
    """The parents of one record: the nearest records that it was computed from.

    ops: the operations between the record and its parents, each node once.
    untracked: those of `ops` that visibly read something which autograd does not follow.
    missing: why there may be other parents; empty where `parents` are all that autograd knows.
    unrecorded: parameters among the parents whose values have no record; `missing` lists them too.
    unseen: names of tensors whose values backward may have read and that have no record; `missing`
        does not list them.
    """

    parents: tuple[Link, ...] = ()
    ops: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unrecorded: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether all parents that autograd can know are known."""
        return not self.missing


@dataclass(slots=True)
class Search:
    """The parents and operations that the search for one record's parents has found so far.

    The fields are those of `RecordAncestry`, and `links` are its parents. Dicts stand for ordered
    sets.
    """

    links: dict[Link, Link] = field(default_factory=dict)
    ops: list[str] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    missing: dict[str, None] = field(default_factory=dict)
    unrecorded: dict[str, None] = field(default_factory=dict)
    unseen: dict[str, None] = field(default_factory=dict)
    _seen: set[object] = field(default_factory=set)

    def is_new(self, step: object) -> bool:
        """Note that a node of the autograd graph was visited; return whether it is new.

        step: any key by which the search knows the node.
        """
        new = step not in self._seen
        self._seen.add(step)
        return new

    def add_operations(self, site: Site, edges: Edges, places: Sequence[int]) -> tuple[str, ...]:
        """Note operations between a tensor and its parents; return their names.

        site: the forward call that computed the tensor. edges: the edges of that call. places: the
            indices of the operations in `edges.ops`.
        """
        for place in places:
            if self.is_new((site, place)):
                self.ops.append(edges.ops[place])
                if 0 in edges.inputs[place]:
                    self.untracked.append(edges.ops[place])
        return tuple(edges.ops[place] for place in places)

    def add_parent(self, link: Link) -> None:
        """Note a parent; if it was noted before, add the operations of `link` to those noted then.

        A parent to which several chains of operations lead so has the operations of all of them.
        """
        bare = replace(link, ops=())
        known = self.links.get(bare)
        if known is not None and known.ops != link.ops:
            link = replace(link, ops=(*known.ops, *link.ops))
        self.links[bare] = link

    def add_missing(self, reason: str) -> None:
        """Note a reason why there may be parents that the search does not find."""
        self.missing[reason] = None

    def add_missing_parameter(self, name: str) -> None:
        """Note that the value of a parameter, which is a parent, has no record."""
        self.unrecorded[name] = None
        self.add_missing(f"{name} was not recorded there")

    def answer(self) -> RecordAncestry:
        """Return what the search has found as a `RecordAncestry`."""
        return RecordAncestry(
            tuple(self.links.values()),
            tuple(self.ops),
            tuple(self.untracked),
            tuple(self.missing),
            tuple(self.unrecorded),
            tuple(self.unseen),
        )


def link_to(parent: Parent, pass_index: int) -> Link:
    """Return the link to a parent's value, for a forward call made in pass `pass_index`."""
    made_in = pass_index if parent.pass_index is None else parent.pass_index
    return Link(parent.name, "value", parent.call, made_in, parent.steps_back, parent.phase)


def between(edges: Edges, number: int) -> list[int]:
    """Return the indices in `edges.ops` of the operations between a tensor and one of its parents.

    number: the number of the parent, from 1. The indices are ascending.
    """
    users: dict[int, list[int]] = {}
    for place, sources in enumerate(edges.inputs):
        for source in sources:
            if source:
                users.setdefault(source, []).append(place)
    places: set[int] = set()
    waiting = list(users.get(-number, ()))
    while waiting:
        place = waiting.pop()
        if place not in places:
            places.add(place)
            waiting += users.get(place, ()) if place else ()
    return sorted(places)
