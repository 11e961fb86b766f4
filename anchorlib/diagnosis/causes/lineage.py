"""What each record of a run was computed from, by which operations.

    value       of an anchored tensor: values of the tensors and parameters it was computed from
    grad        of an anchored tensor: gradients of the tensors that were computed from it, through
                the backward of these operations; and values that the operations may have saved
    pass_grad   of a parameter: as the grad of an anchored tensor
    grad        of a parameter: its pass_grads of the step
    opt.KEY     of a parameter: its value and grad, and its optimizer state after the step before
    updated, delta                as opt.KEY
    value       of a parameter: its `updated` of the step before

Only what the first line says is stored (`anchorlib.record.Edges`); the other lines follow from it
here. Pure functions of the stored edges and of which records a step has; nothing is read.

    lineage = Lineage(run.edges(rank))
    step = lineage.step(there, number=3)           # there: {(name, kind, pass, call): shape}
    step.parents("fc3", "grad")                    # .parents == (Link("tanh3", "grad", …), …)

Where a parent has no record at that step, its own parents take its place, and its operations are
added. Where these parents are not known either, `RecordAncestry.missing` says why.
Tensors that autograd does not follow (data, indices, masks, buffers, random numbers) never show as
parents: `RecordAncestry.untracked` names the operations that visibly read such tensors, and
`StepLineage.loose` the recorded values of which no origin is known. Those operations may have read
those values.

Not known here: gradients that come from an earlier or later pass or step (a graph kept across
them), clipping, all-reduction, unscaling and whatever else is done to gradients and parameters
between backward and step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from anchorlib.diagnosis.causes.ancestry import Link, RecordAncestry, Search, Site, between, link_to
from anchorlib.diagnosis.pairing import opaque
from anchorlib.record import BUFFER, Edges

__all__ = ["Lineage", "StepLineage"]

Shape = tuple[int, ...]
RecordKey = tuple[str, str, int, int]
"""A record of one step and phase: name, kind, pass, call."""


class Lineage:
    """The stored edges of one rank: for each forward call, what it was computed from."""

    def __init__(self, edges: Iterable[Edges]) -> None:
        self._first: dict[tuple[int, str, str, int], Edges] = {}
        self._exact: dict[tuple[int, str, str, int, int, Shape], list[Edges]] = {}
        for statement in edges:
            first = (statement.attempt, statement.phase, statement.name, statement.call)
            self._first.setdefault(first, statement)
            self._exact.setdefault((*first, statement.pass_index, statement.shape), []).append(
                statement
            )

    def edges(  # noqa: PLR0913  # the coordinates of a record
        self,
        name: str,
        *,
        step: int,
        pass_index: int = 0,
        call: int = 0,
        shape: Shape | None = None,
        phase: str = "train",
        attempt: int = 0,
    ) -> Edges | None:
        """Return the edges that hold for one forward call; None where the store has none.

        These are the last edges stated at or before `step` for this pass and shape; where none are,
        the first that were stated for this name, call, phase and attempt.
        shape: the shape of the call's result; None: the shape of the first edges that were stated.
        """
        first = (attempt, phase, name, call)
        known = self._first.get(first)
        if known is None:
            return None
        statements = self._exact.get(
            (*first, pass_index, known.shape if shape is None else shape), ()
        )
        return next(
            (statement for statement in reversed(statements) if statement.step <= step), known
        )

    def step(
        self,
        there: Mapping[RecordKey, Shape],
        *,
        number: int = 0,
        phase: str = "train",
        attempt: int = 0,
        recorded: Collection[tuple[str, str]] | None = None,
        sampled: Collection[tuple[str, str]] = (),
    ) -> StepLineage:
        """Return the lineage of one step's records.

        there: the records of that step, phase and attempt, with their shapes.
        recorded: every (name, kind) of which the rank has records; None: those in `there`.
        sampled: every (name, kind) that a mode other than All and Summary recorded: a missing
            record of these does not mean that the call was not made.
        """
        pairs = {(name, kind) for name, kind, _, _ in there} if recorded is None else recorded
        lineage = StepLineage(there, set(pairs), set(sampled))
        passes = sorted({key[2] for key in there})
        for at_attempt, at_phase, name, call in self._first:
            if (at_attempt, at_phase) != (attempt, phase):
                continue
            for pass_index in passes:
                shape = lineage.shape_of(name, pass_index, call)
                where = {"step": number, "pass_index": pass_index, "call": call}
                edges = self.edges(name, **where, shape=shape, phase=phase, attempt=attempt)
                if edges is not None and (shape is not None or lineage.may_be(name)):
                    lineage.add(pass_index, edges)
        return lineage


class StepLineage:
    """What the records of one step were computed from; made by `Lineage.step`."""

    def __init__(
        self,
        there: Mapping[RecordKey, Shape],
        recorded: Collection[tuple[str, str]],
        sampled: Collection[tuple[str, str]],
    ) -> None:
        self._there = there
        self._recorded = recorded
        self._sampled = sampled
        self._edges: dict[Site, Edges] = {}
        self._children: dict[Site, list[tuple[Site, int]]] = {}
        self._parameters: set[str] = set()

    # -- calls and their statements

    def shape_of(self, name: str, pass_index: int, call: int) -> Shape | None:
        """Return the shape of a forward call's result.

        None where the step has no record of the call.
        """
        value = self._there.get((name, "value", pass_index, call))
        return self._there.get((name, "grad", pass_index, call)) if value is None else value

    def may_be(self, name: str) -> bool:
        """Return whether forward calls of a tensor may have been made without leaving a record.

        That is so where the modes that record its values and gradients all record only some calls,
        and where the rank has no record of the tensor at all. name: the tensor's.
        """
        kinds = [kind for kind in ("value", "grad") if (name, kind) in self._recorded]
        return all((name, kind) in self._sampled for kind in kinds)

    def is_sharded(self, name: str) -> bool:
        """Return whether a tensor is a DTensor that lies on several ranks.

        For a DTensor there are records named `NAME:placements`.
        """
        return (f"{name}:placements", "value") in self._recorded

    def add(self, pass_index: int, edges: Edges) -> None:
        """Add the edges of one forward call, which hold for that call in one pass."""
        site = (edges.name, pass_index, edges.call)
        self._edges[site] = edges
        followed = {-source for sources in edges.inputs for source in sources if source < 0}
        for number, parent in enumerate(edges.parents, 1):
            if parent.call is None:
                self._parameters.add(parent.name)
            # No gradient comes back to a parent that was handed over without autograd.
            if parent.pass_index is None and (number in followed or not edges.ops):
                above = (parent.name, pass_index, parent.call)
                self._children.setdefault(above, []).append((site, number))

    @property
    def loose(self) -> list[RecordKey]:
        """The keys of values of which autograd says nothing: data, buffers, results of `no_grad`.

        Tensors that the program makes and that require a gradient, such as the sample points of a
        physics-informed net, are among them: no operation made such a tensor. Parameters are not.
        """
        keys, parameters = [], self.parameters
        for key in self._there:
            name, kind, pass_index, call = key
            edges = self._edges.get((name, pass_index, call))
            made = edges is not None and bool(edges.ops or edges.parents)
            known = made or name in parameters
            if kind == "value" and not known:
                keys.append(key)
        return keys

    def is_followed(self, name: str, pass_index: int, call: int) -> bool:
        """Return whether autograd follows the value of a forward call; True where it is not known.

        If a module is called without gradients, such as a teacher, the edges of its result name
        the module in place of operations. Autograd then follows nothing that is computed from
        that result.
        """
        site: Site | None = (name, pass_index, call)
        seen = set()
        while site is not None and site not in seen:
            seen.add(site)
            edges = self._edges.get(site)
            if edges is not None and edges.ops:
                return not opaque(edges.ops)
            site = self._other_name(site)
        return True

    @property
    def buffers(self) -> Collection[str]:
        """Names of the buffers of watched models that were recorded in this step."""
        return {site[0] for site, edges in self._edges.items() if edges.missing == (BUFFER,)}

    @property
    def parameters(self) -> Collection[str]:
        """Names of the parameters from which this step's tensors were computed.

        A tensor that requires a gradient and has edges of its own, such as an input of a model, is
        no parameter.
        """
        return self._parameters - {name for name, _, _ in self._edges}

    # -- parents

    def parents(self, name: str, kind: str, pass_index: int = 0, call: int = 0) -> RecordAncestry:
        """Return what the record of `name` and `kind` at one pass and call was computed from."""
        site = (name, pass_index, call)
        search = Search()
        # Compiled code may hide from autograd what an optimizer updates.
        updates = kind in ("updated", "delta") or kind.startswith("opt.")
        if updates or (name in self._parameters and site not in self._edges):
            self._parameter(name, kind, pass_index, call, search)
        elif kind == "value":
            self._above(site, (), search)
        elif kind == "grad":
            return self._of_gradient(site)
        else:
            search.add_missing(f"no anchored tensor is known that was made of {name}")
        return search.answer()

    def _of_gradient(self, site: Site) -> RecordAncestry:
        """Return what the gradient of a forward call's result was computed from.

        A model that returns an inner result records one tensor under two names. Its gradient is the
        sum over all that was computed from the tensor, by whichever name that is known.
        """
        search = Search()
        above: Site | None = site
        while above is not None and search.is_new(("named", above)):
            self._below(above, (), search)
            above = self._other_name(above)
        answer = search.answer()
        own = (site[0], "grad", site[1], site[2])
        others = (
            link
            for link in answer.parents
            if (link.name, link.kind, link.pass_index, link.call) != own
        )
        return replace(answer, parents=tuple(others))

    def _other_name(self, site: Site) -> Site | None:
        """Return the call that recorded the same tensor before under another name, else None."""
        edges = self._edges.get(site)
        if edges is None or edges.ops or edges.missing or len(edges.parents) != 1:
            return None
        (parent,) = edges.parents
        if parent.call is None or parent.pass_index is not None:
            return None
        return (parent.name, site[1], parent.call)

    def _parameter(self, name: str, kind: str, pass_index: int, call: int, search: Search) -> None:
        """Note in `search` the parents of a parameter's record of this kind, pass and call."""
        if kind == "pass_grad":
            self._below((name, pass_index, None), (), search)
        elif kind == "grad":
            self._consumed(name, search)
        elif kind == "value" and pass_index:
            self._reach_state(Link(name, "value", None), search)
            self._stepped(name, search)
            search.add_missing("what changed it between passes is not known")
        elif kind == "value":
            self._reach_state(Link(name, "updated", None, steps_back=1), search)
        elif call:
            self._update_again(name, call, search)
        else:
            self._update(name, search)

    def _stepped(self, name: str, search: Search) -> None:
        """Note as parents the updates that optimizers have made of a parameter inside this step."""
        for call in sorted(key[3] for key in self._there if key[:2] == (name, "updated")):
            search.add_parent(Link(name, "updated", call))

    def _update_again(self, name: str, call: int, search: Search) -> None:
        """Note the parents of a step's second or later update of a parameter.

        call: the number of the optimizer step inside this step. The parents are the gradient of
            that optimizer step, and what the optimizer step before it made.
        """
        search.add_parent(Link(name, "grad", call))
        states = {kind for one, kind, _, _ in self._there if one == name and kind[:4] == "opt."}
        for kind in ("updated", *sorted(states)):
            search.add_parent(Link(name, kind, call - 1))

    def _reach_state(self, link: Link, search: Search) -> None:
        """Note a parameter's record as a parent, or as missing if its kind has no record at all."""
        if (link.name, link.kind) in self._recorded:
            search.add_parent(link)
        else:
            search.add_missing(f"{link.name}@{link.kind} is not recorded")

    def _consumed(self, name: str, search: Search) -> None:
        """Note as parents a parameter's gradients of all passes, whose sum the optimizer reads.

        A pass without a record of its gradient is replaced by the gradients that it was made from.
        """
        for pass_index in sorted({site[1] for site in self._children if site[::2] == (name, None)}):
            # A second backward through one forward is a call of its own.
            calls = [key[3] for key in self._there if key[:3] == (name, "pass_grad", pass_index)]
            for call in calls:
                search.add_parent(Link(name, "pass_grad", call, pass_index))
            if not calls and self._state(name, "pass_grad", pass_index, 0) != "absent":
                self._below((name, pass_index, None), (), search)

    def _update(self, name: str, search: Search) -> None:
        """Note the parents of a parameter's update: its value, gradient and optimizer state."""
        self._reach_state(Link(name, "value", None), search)
        if (name, "grad") in self._recorded:
            search.add_parent(Link(name, "grad", None))
        else:
            self._consumed(name, search)
        for kind in sorted(kind for one, kind in self._recorded if one == name):
            if kind.startswith("opt."):
                search.add_parent(Link(name, kind, None, steps_back=1))

    def _above(self, site: Site, ops: tuple[str, ...], search: Search) -> None:
        """Note the recorded values from which the value of `site` was computed.

        ops: the operations between `site` and the child whose parents are searched.
        """
        edges = self._edges.get(site)
        if edges is None:
            search.add_missing(f"how {site[0]} was made is not known")
            return
        if not search.is_new(("above", site)):
            return
        search.missing |= dict.fromkeys(edges.missing)
        search.add_operations(site, edges, range(len(edges.ops)))
        for number, parent in enumerate(edges.parents, 1):
            link = link_to(parent, site[1])
            between_ops = search.add_operations(site, edges, between(edges, number))
            link = replace(link, ops=(*ops, *between_ops))
            if self._is_there(link):
                search.add_parent(link)
            elif parent.call is None:
                search.add_missing_parameter(parent.name)
            elif parent.pass_index is not None:
                search.add_missing(f"{parent.name} was not recorded there")
            else:
                self._above((parent.name, site[1], parent.call), link.ops, search)

    def _below(self, site: Site, ops: tuple[str, ...], search: Search) -> None:
        """Add to `search` the recorded gradients from which the gradient of `site` was computed.

        ops: the operations between `site` and the record whose parents are searched.
        """
        if not search.is_new(("below", site)):
            return
        reached = False
        for child, number in self._children.get(site, ()):
            name, pass_index, call = child
            edges = self._edges[child]
            state = self._state(name, "grad", pass_index, call)
            # The child's hook was in place, yet no gradient came: backward took other branches.
            if state == "absent" or (state == "unrecorded" and edges.grad):
                continue
            reached = True
            through = (*ops, *search.add_operations(child, edges, between(edges, number)))
            if state == "there":
                search.add_parent(Link(name, "grad", call, pass_index, ops=through))
            else:
                self._below(child, through, search)
            self._saved(child, edges, search)
        if not reached:
            search.add_missing(f"nothing recorded is known to have led the gradient to {site[0]}")

    def _saved(self, child: Site, edges: Edges, search: Search) -> None:
        """Note the values that operations between `child` and its parents may have saved."""
        if not edges.ops:
            return
        name, pass_index, call = child
        links = [Link(name, "value", call, pass_index)]
        links += [link_to(parent, pass_index) for parent in edges.parents]
        for link in links:
            if self._is_there(link):
                search.add_parent(replace(link, saved=True))
            else:
                search.unseen[link.name] = None

    def _is_there(self, link: Link) -> bool:
        # A parameter's value is recorded only where it changed; other steps are not known here.
        if link.call is None or link.steps_back or link.phase:
            return (link.name, link.kind) in self._recorded
        return (link.name, link.kind, link.pass_index, link.call) in self._there

    def _state(self, name: str, kind: str, pass_index: int, call: int | None) -> str:
        """Return "there" for a record, or why it is not there: "absent", "sampled", "unrecorded".

        An absent record was not made: its mode would have kept it. A sampled record may have been
        made. An unrecorded kind has no record in the whole rank.
        """
        if (name, kind, pass_index, call) in self._there:
            return "there"
        if (name, kind) not in self._recorded:
            return "unrecorded"
        return "sampled" if (name, kind) in self._sampled else "absent"
