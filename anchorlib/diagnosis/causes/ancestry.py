"""The parents of one record, and the search that gathers them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from anchorlib.record import Edges, Parent

__all__ = ["Link", "RecordAncestry", "Search", "Site", "between", "link_to"]

Site = tuple[str, int, int | None]
"""A tensor of one step and phase: name, pass, call; a parameter has no call."""


@dataclass(frozen=True, slots=True)
class Link:
    """One parent of a record.

    call: None for a parameter, except for its pass_grad: its other kinds have no calls.
    pass_index: the pass in which the parent was made. For a parameter's `value`, the last record at
        or before this pass counts, since values are recorded only where they changed.
    steps_back: how many steps the parent lies before the child.
    phase: the parent's phase, "" for that of the child.
    ops: names of the autograd nodes between the two, in the order in which backward runs them.
    saved: whether backward may only have read the parent, as a saved tensor; the gradient itself
        came from other parents.
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
    """What the search for one record's parents has found so far."""

    links: dict[Link, Link] = field(default_factory=dict)
    ops: list[str] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    missing: dict[str, None] = field(default_factory=dict)
    unrecorded: dict[str, None] = field(default_factory=dict)
    unseen: dict[str, None] = field(default_factory=dict)
    _seen: set[object] = field(default_factory=set)

    def enter(self, step: object) -> bool:
        """Notes a step of the search, and returns whether the step is new."""
        new = step not in self._seen
        self._seen.add(step)
        return new

    def cross(self, site: Site, edges: Edges, places: Sequence[int]) -> tuple[str, ...]:
        """Notes the operations at these places of the edges of `site`, and returns their names."""
        for place in places:
            if self.enter((site, place)):
                self.ops.append(edges.ops[place])
                if 0 in edges.inputs[place]:
                    self.untracked.append(edges.ops[place])
        return tuple(edges.ops[place] for place in places)

    def reach(self, link: Link) -> None:
        """Notes a parent; a parent that is reached twice keeps the operations of both ways."""
        bare = replace(link, ops=())
        known = self.links.get(bare)
        if known is not None and known.ops != link.ops:
            link = replace(link, ops=(*known.ops, *link.ops))
        self.links[bare] = link

    def lack(self, reason: str) -> None:
        """Notes why parents may be missing."""
        self.missing[reason] = None

    def lack_parameter(self, name: str) -> None:
        """Notes that the value of a parameter has no record."""
        self.unrecorded[name] = None
        self.lack(f"{name} was not recorded there")

    def answer(self) -> RecordAncestry:
        """The ancestry that the search has found."""
        return RecordAncestry(
            tuple(self.links.values()),
            tuple(self.ops),
            tuple(self.untracked),
            tuple(self.missing),
            tuple(self.unrecorded),
            tuple(self.unseen),
        )


def link_to(parent: Parent, pass_index: int) -> Link:
    """The link from a call of this pass to the value of one of its parents."""
    made_in = pass_index if parent.pass_index is None else parent.pass_index
    return Link(parent.name, "value", parent.call, made_in, parent.steps_back, parent.phase)


def between(edges: Edges, number: int) -> list[int]:
    """The places in `edges.ops` between a tensor and its parent of this number, from 1."""
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
