"""The frontier: the differences that no other recorded difference explains.

A record that differs is a receiver where one of its parents differs, or where a record in its scope
does (`anchorlib.diagnosis.causes.parentage`). All others are origins. Bits alone decide: no value
is read here, and there is no tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes.ancestry import Ancestry, Link
from anchorlib.diagnosis.causes.copies import copies
from anchorlib.diagnosis.causes.grafted import carried
from anchorlib.diagnosis.causes.lineage import Lineage
from anchorlib.diagnosis.causes.parentage import Layout, Role, Scope, layout_of, plain
from anchorlib.diagnosis.causes.reach import Reach
from anchorlib.diagnosis.causes.step_layouts import Blocks, blocks_of
from anchorlib.diagnosis.pairing import Alignment, statements
from anchorlib.scope import TRAIN

__all__ = ["Frontier", "frontier"]

Array = np.ndarray[Any, Any]
EQUAL, DIFFERS, UNMATCHED = 0, 1, 2
CHUNK = 1 << 22
"""Links that are looked at at once: bounds memory."""


@dataclass(slots=True)
class Frontier:
    """What equal and other bits tell, for each row of A's table.

    status: 0 equal, 1 differs, 2 without a partner.
    carried: the status as later records received it. Under `anchorlib.graft` B went on with A's
        values, so that a row that differs handed on no difference, and counts as equal here.
    role: the `Role` of each row that differs.
    explained: whether another recorded difference explains a row that differs.
    lacking: whether the row's ancestry is incomplete. parameter_lacking: whether it is so for want
        of a parameter's record alone.
    orphaned: whether a parent in the row's own step was recorded in A alone.
    opening: whether the step before the row's was not recorded, or in A alone.
    since: the row's order; where its tensor was recorded under another name before, that row's.
    block_of, place_of: the row's block in `blocks`, and its place in the layout of that block.
    layouts: the resolved parents of each layout in which something differs.
    copies: for values that autograd does not follow and that nothing else explains, the equal
        record whose bits the value has in one run alone.
    """

    alignment: Alignment
    blocks: Blocks
    lineages: dict[int, Lineage]
    status: Array
    carried: Array
    role: Array
    explained: Array
    lacking: Array
    parameter_lacking: Array
    orphaned: Array
    opening: Array
    since: Array
    block_of: Array
    place_of: Array
    layouts: dict[int, Layout] = field(default_factory=dict)
    copies: dict[int, int] = field(default_factory=dict)

    @property
    def shared(self) -> Array:
        """Whether B has any record of each block."""
        counts = np.bincount(self.block_of[self.status != UNMATCHED], minlength=len(self.blocks))
        found: Array = counts > 0
        return found

    @property
    def origins(self) -> Array:
        """The rows that differ and that no other recorded difference explains, ascending."""
        return np.flatnonzero((self.status == DIFFERS) & ~self.explained)

    def blocks_before(self, some: Array) -> Array:
        """The block of the step before each of these blocks; -1 where there is none.

        A run that went over to eval mode while the other still trained has no eval block before:
        there, the training block of the step before counts.
        """
        blocks, phases = self.blocks, list(self.alignment.a.phases)
        rank, phase, steps = blocks.rank[some], blocks.phase[some], blocks.step[some] - 1
        before = blocks.find(rank, phase, steps)
        if self.alignment.eval_since[0] is None or TRAIN not in phases:
            return before
        trained = blocks.find(rank, np.full(len(some), phases.index(TRAIN)), steps)
        return np.where(before < 0, trained, before)

    def ancestry(self, row: int) -> Ancestry:
        """The parents of a row that differs."""
        if row in self.copies:
            return Ancestry((self._link(row, self.copies[row]),))
        layout = self.layouts[int(self.blocks.layout[self.block_of[row]])]
        return layout.ancestry.get(int(self.place_of[row]), Ancestry())

    def _link(self, child: int, parent: int) -> Link:
        a = self.alignment.a
        phase = a.phases[a.phase[parent]] if a.phase[parent] != a.phase[child] else ""
        return Link(
            a.tensors[a.tensor[parent]].name,
            a.tensors[a.tensor[parent]].kind,
            int(a.call[parent]),
            int(a.pass_index[parent]),
            int(a.step[child] - a.step[parent]),
            phase,
        )

    def parents(self, row: int, *, saved: bool = False) -> list[int]:
        """The rows, inside the row's own step, of its parents; `saved`: with those only saved."""
        block = int(self.block_of[row])
        layout, rows = self.layouts[int(self.blocks.layout[block])], self.blocks.rows_of(block)
        found = []
        for link in self.ancestry(row).parents:
            if (link.saved and not saved) or link.steps_back or link.phase:
                continue
            key = (link.name, link.kind, link.pass_index, link.call or 0)
            place = layout.find(key, latest=link.call is None and link.kind == "value")
            if place is not None:
                found.append(int(rows[place]))
        return list(dict.fromkeys(found))


def frontier(alignment: Alignment, unknown: Sequence[int] | Array = ()) -> Frontier:
    """Tells origins from receivers among the pairs that differ.

    unknown: rows of A that are judged as if they had no partner, whatever their pairs say.
    """
    a = alignment.a
    ranks = sorted({tensor.rank for tensor in a.tensors})
    told = {rank: statements(alignment, rank) for rank in ranks}
    turns = {rank: np.unique([one.step for one in some]) for rank, some in told.items()}
    blocks = blocks_of(a, lambda rank, steps: np.searchsorted(turns[rank], steps, "right"))
    status = np.full(len(a), UNMATCHED, np.uint8)
    status[alignment.a_row] = np.where(alignment.equal, EQUAL, DIFFERS)
    status[np.asarray(unknown, np.int64)] = UNMATCHED
    size = np.diff(blocks.starts)
    block_of, place_of = np.empty(len(a), np.int64), np.empty(len(a), np.int64)
    block_of[blocks.rows] = np.repeat(np.arange(len(blocks)), size)
    place_of[blocks.rows] = np.arange(len(a)) - np.repeat(blocks.starts[:-1], size)
    found = Frontier(
        alignment=alignment,
        blocks=blocks,
        lineages={rank: Lineage(some) for rank, some in told.items()},
        status=status,
        carried=carried(alignment, status),
        role=np.zeros(len(a), np.uint8),
        explained=np.zeros(len(a), bool),
        lacking=np.zeros(len(a), bool),
        parameter_lacking=np.zeros(len(a), bool),
        orphaned=np.zeros(len(a), bool),
        opening=np.zeros(len(a), bool),
        since=a.order.copy(),
        block_of=block_of,
        place_of=place_of,
    )
    for layout, some in _differing_blocks(found):
        found.layouts[layout] = _layout(found, layout, some)
        _inside(found, found.layouts[layout], some)
        _across(found, found.layouts[layout], some)
    _copies(found)
    _scopes(found)
    return found


def _differing_blocks(found: Frontier) -> Iterator[tuple[int, Array]]:
    """Each layout with its blocks in which something differs."""
    blocks = np.unique(found.block_of[found.status == DIFFERS])
    for layout in np.unique(found.blocks.layout[blocks]).tolist():
        yield layout, blocks[found.blocks.layout[blocks] == layout]


def _layout(found: Frontier, number: int, some: Array) -> Layout:
    """The layout of this number, with parents for the places that differ in one of its blocks."""
    a, blocks = found.alignment.a, found.blocks
    example = blocks.example[number]
    rows = blocks.rows_of(example)
    rank, phase = int(blocks.rank[example]), int(blocks.phase[example])
    tensors = [a.tensors[one] for one in a.tensor[rows]]
    where = zip(tensors, a.pass_index[rows].tolist(), a.call[rows].tolist(), strict=True)
    keys = [(tensor.name, tensor.kind, pass_index, call) for tensor, pass_index, call in where]
    shapes = [a.shapes[one] for one in a.shape[rows]]
    own = [tensor for tensor in a.tensors if tensor.rank == rank]
    lineage = found.lineages[rank].step(
        dict(zip(keys, shapes, strict=True)),
        number=int(blocks.step[example]),
        phase=a.phases[phase],
        attempt=int(blocks.attempt[example]),
        recorded={(tensor.name, tensor.kind) for tensor in own},
        sampled={(tensor.name, tensor.kind) for tensor in own if not plain(tensor.mode)},
    )
    differs = np.zeros(len(rows), bool)
    for block in some:
        differs |= found.status[blocks.rows_of(block)] == DIFFERS
    return layout_of(
        lineage,
        keys,
        [tensor.mode for tensor in tensors],
        train=_trains(a, phase),
        wanted=np.flatnonzero(differs),
    )


def _trains(table: Any, phase: int) -> bool:
    """Whether gradients were recorded in a phase, or it is called train."""
    kinds = {table.tensors[one].kind for one in np.unique(table.tensor[table.phase == phase])}
    return table.phases[phase] == "train" or bool(kinds - {"value"})


def _inside(found: Frontier, layout: Layout, some: Array) -> None:
    """Judges rows by their parents in the same step, for all blocks of a layout together."""
    size = len(layout.keys)
    children, first = np.unique(layout.child, return_index=True)
    chunk = max(CHUNK // max(len(layout.child), size, 1), 1)
    for start in range(0, len(some), chunk):
        blocks = some[start : start + chunk]
        rows = found.blocks.rows[found.blocks.starts[blocks][:, None] + np.arange(size)]
        found.role[rows] = layout.role
        found.lacking[rows] = layout.lacking
        found.parameter_lacking[rows] = layout.parameter_lacking
        if not len(children):
            continue
        _hand_on(found.since, rows, layout)
        parents = _parents(found, rows, layout)
        differs = np.logical_or.reduceat(parents == DIFFERS, first, axis=1)
        unknown = np.logical_or.reduceat(parents == UNMATCHED, first, axis=1)
        found.explained[rows[:, children]] |= differs
        found.lacking[rows[:, children]] |= unknown
        found.orphaned[rows[:, children]] |= unknown


def _parents(found: Frontier, rows: Array, layout: Layout) -> Array:
    """The status of each parent in these blocks; a parent that came too late counts as equal.

    Where an optimizer steps inside a step, records of later passes did not go into its result.
    """
    parents = found.carried[rows][:, layout.parent]
    timely = np.flatnonzero(layout.timely)
    order = found.alignment.a.order[rows]
    late = order[:, layout.parent[timely]] > order[:, layout.child[timely]]
    parents[:, timely] = np.where(late, EQUAL, parents[:, timely])
    return parents


def _hand_on(since: Array, rows: Array, layout: Layout) -> None:
    """Sets `since` of every name of a tensor to the order of the first name that was recorded."""
    child, parent = rows[:, layout.child[layout.named]], rows[:, layout.parent[layout.named]]
    while (since[child] < since[parent]).any():
        np.minimum.at(since, parent, since[child])


def _across(found: Frontier, layout: Layout, some: Array) -> None:
    """Judges rows by their parents in other steps and phases; marks rows whose step opens a run."""
    blocks = found.blocks
    steps = blocks.step[some]
    before = found.blocks_before(some)
    before = np.where(found.shared[np.maximum(before, 0)], before, -1)
    late = min(key[2] for key in layout.keys) > 0
    for block in some if late else some[(before < 0) & (steps > 0)]:
        found.opening[blocks.rows_of(block)] = True
    for (steps_back, phase), links in layout.away.items():
        if phase and phase not in found.alignment.a.phases:
            continue
        code = list(found.alignment.a.phases).index(phase) if phase else 0
        phases = np.full(len(some), code) if phase else blocks.phase[some]
        target = blocks.find(blocks.rank[some], phases, steps - steps_back)
        for number in np.unique(blocks.layout[target[target >= 0]]).tolist():
            which = (target >= 0) & (blocks.layout[np.maximum(target, 0)] == number)
            _away(found, links, some[which], target[which])


def _away(found: Frontier, links: list[Any], some: Array, target: Array) -> None:
    """Judges the links from blocks of one layout (`some`) to blocks of one other (`target`)."""
    a, blocks = found.alignment.a, found.blocks
    rows = blocks.rows_of(int(target[0]))
    where = (a.tensor[rows], a.pass_index[rows], a.call[rows])
    there: dict[tuple[str, str, int, int], int] = {}
    coordinates = zip(*(column.tolist() for column in where), strict=True)
    for at, (tensor, pass_index, call) in enumerate(coordinates):
        one = a.tensors[tensor]
        there[one.name, one.kind, pass_index, call] = at
    for link in links:
        name, kind, pass_index, call = link.key
        passes = range(pass_index, -1 if link.latest else pass_index - 1, -1)
        places = [there[key] for k in passes if (key := (name, kind, k, call)) in there]
        child = blocks.rows[blocks.starts[some] + link.child]
        if not places:
            found.lacking[child] = True
            continue
        status = found.carried[blocks.rows[blocks.starts[target] + places[0]]]
        found.explained[child] |= status == DIFFERS
        found.lacking[child] |= status == UNMATCHED


def _copies(found: Frontier) -> None:
    """Links values that autograd does not follow to the record of which they are copies."""
    rows = found.origins
    rows = rows[np.isin(found.role[rows], (Role.LOOSE, Role.INPUT))]
    for row, source in copies(found.alignment, rows).items():
        if found.carried[source] == DIFFERS:
            found.explained[row] = True
        elif found.status[source] == EQUAL:
            found.copies[row] = source


def _scopes(found: Frontier) -> None:
    """Explains rows by differences in their scopes, where no parent explains them."""
    rows = found.origins
    scope = np.empty(len(rows), np.uint8)
    numbers = found.blocks.layout[found.block_of[rows]]
    for number in np.unique(numbers).tolist():
        which = numbers == number
        scope[which] = found.layouts[number].scope[found.place_of[rows[which]]]
    # A parent without a partner may have differed, and so may any record before it.
    orphaned = found.lacking[rows] & (found.role[rows] == Role.COMPUTED)
    orphaned &= (scope & np.uint8(Scope.STEPS | Scope.EARLIER)) == 0
    scope[orphaned] |= np.uint8(Scope.EARLIER)
    reach = Reach(found.alignment.a, found.carried == DIFFERS, found.role, found.since)
    found.explained[rows] = reach.any_in(rows, scope)
