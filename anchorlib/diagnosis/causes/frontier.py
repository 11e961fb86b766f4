"""The frontier: the differences that no other recorded difference explains.

A record that differs is a receiver where one of its parents (the records that it was computed from)
differs, or where a record differs that may be a parent without being known as one (its scope, see
`anchorlib.diagnosis.causes.parentage`). All other records that differ are origins. Bits alone
decide: no value is read here, and there is no tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes.ancestry import Link, RecordAncestry
from anchorlib.diagnosis.causes.copies import copies
from anchorlib.diagnosis.causes.grafted import carried
from anchorlib.diagnosis.causes.lineage import Lineage
from anchorlib.diagnosis.causes.parentage import CauseScope, Role, StepLayout, layout_of, plain
from anchorlib.diagnosis.causes.reach import Reach
from anchorlib.diagnosis.causes.step_layouts import Blocks, blocks_of
from anchorlib.diagnosis.pairing import Alignment, statements
from anchorlib.scope import TRAIN

__all__ = ["Frontier", "frontier"]

Array = np.ndarray[Any, Any]
EQUAL, DIFFERS, UNMATCHED = 0, 1, 2
CHUNK = 1 << 22
"""How many links are examined together, which bounds the memory that is needed."""


@dataclass(slots=True)
class Frontier:
    """For each row of A's table, what follows from whether its bits and its parents' bits differ.

    status: 0 equal, 1 differs, 2 without a partner in B.
    carried: the status that counts when the row is the parent of another record. Under
        `anchorlib.graft` B went on with A's values, so that the row's own difference did not reach
        later records: then a row that differs is 0 here.
    role: the `Role` of each row that differs.
    explained: whether another recorded difference explains a row that differs.
    ancestry_incomplete: whether the row may have parents that are unknown, were not recorded, or
        have no partner in B; True for each row of a mode that keeps only some observations.
    only_parameters_missing: whether the row lacks known parents in its step, all of them parameters
        without a record.
    parent_only_in_a: whether a parent in the row's own step was recorded in A alone.
    predecessor_missing: whether records just before the row's block are missing: the first pass of
        the row's step in A, or the step before in A or B (step 0 needs no step before it).
    unfollowed: whether the row is a value that a module computed without gradients.
    first_order: the row's order of execution; where its tensor was recorded under another name
        before, the order of that first record.
    block_of, place_of: the row's block (the records of its rank, phase and step) in `blocks`, and
        its index in the layout of that block.
    layouts: by its number, each layout of blocks in which something differs, with the parents of
        the records that differ.
    copies: row -> row of the earlier record that the value copies in one run alone. Such a value
        is one that autograd does not follow and whose difference nothing explains; the record that
        it copies is equal in both runs.
    """

    alignment: Alignment
    blocks: Blocks
    lineages: dict[int, Lineage]
    status: Array
    carried: Array
    role: Array
    explained: Array
    ancestry_incomplete: Array
    only_parameters_missing: Array
    parent_only_in_a: Array
    predecessor_missing: Array
    unfollowed: Array
    first_order: Array
    block_of: Array
    place_of: Array
    layouts: dict[int, StepLayout] = field(default_factory=dict)
    copies: dict[int, int] = field(default_factory=dict)

    @property
    def shared(self) -> Array:
        """For each block (rank, phase and step) of A, whether B has any record of it."""
        counts = np.bincount(self.block_of[self.status != UNMATCHED], minlength=len(self.blocks))
        any_in_b: Array = counts > 0
        return any_in_b

    @property
    def origins(self) -> Array:
        """The rows of A that differ and that no other recorded difference explains, ascending."""
        return np.flatnonzero((self.status == DIFFERS) & ~self.explained)

    def blocks_before(self, numbers: Array) -> Array:
        """Return the block of the step before each of these blocks; -1 where there is none.

        A block is the records of one rank, phase and step. A run that went over to eval mode while
        the other run still trained has no earlier block of the phase "eval": there, the training
        block of the step before counts.
        """
        blocks, phases = self.blocks, list(self.alignment.a.phases)
        rank, phase, steps = blocks.rank[numbers], blocks.phase[numbers], blocks.step[numbers] - 1
        before = blocks.find(rank, phase, steps)
        if self.alignment.eval_since[0] is None or TRAIN not in phases:
            return before
        trained = blocks.find(rank, np.full(len(numbers), phases.index(TRAIN)), steps)
        return np.where(before < 0, trained, before)

    def ancestry(self, row: int) -> RecordAncestry:
        """Return the parents of a row of A that differs, and how complete they are."""
        if row in self.copies:
            return RecordAncestry((self._link(row, self.copies[row]),))
        layout = self.layouts[int(self.blocks.layout[self.block_of[row]])]
        return layout.ancestry.get(int(self.place_of[row]), RecordAncestry())

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
        """Return the rows of a row's parents that lie in the row's own step and phase.

        saved: whether to include parents that backward may only have read, as saved tensors.
        row: a row of A that differs.
        """
        block = int(self.block_of[row])
        layout, rows = self.layouts[int(self.blocks.layout[block])], self.blocks.rows_of(block)
        rows_of_parents = []
        for link in self.ancestry(row).parents:
            if (link.saved and not saved) or link.steps_back or link.phase:
                continue
            key = (link.name, link.kind, link.pass_index, link.call or 0)
            place = layout.find(key, latest=link.call is None and link.kind == "value")
            if place is not None:
                rows_of_parents.append(int(rows[place]))
        return list(dict.fromkeys(rows_of_parents))


def frontier(alignment: Alignment, unknown: Sequence[int] | Array = ()) -> Frontier:
    """Return, for each row of A, whether it differs and whether another difference explains it.

    Rows that differ without such an explanation are the origins (`Frontier.origins`). unknown: rows
    of A that are judged as if they had no partner, whatever their pairs say.
    """
    a = alignment.a
    ranks = sorted({tensor.rank for tensor in a.tensors})
    edges = {rank: statements(alignment, rank) for rank in ranks}
    turns = {rank: np.unique([one.step for one in of_rank]) for rank, of_rank in edges.items()}
    blocks = blocks_of(a, lambda rank, steps: np.searchsorted(turns[rank], steps, "right"))
    status = np.full(len(a), UNMATCHED, np.uint8)
    status[alignment.a_row] = np.where(alignment.equal, EQUAL, DIFFERS)
    status[np.asarray(unknown, np.int64)] = UNMATCHED
    size = np.diff(blocks.starts)
    block_of, place_of = np.empty(len(a), np.int64), np.empty(len(a), np.int64)
    block_of[blocks.rows] = np.repeat(np.arange(len(blocks)), size)
    place_of[blocks.rows] = np.arange(len(a)) - np.repeat(blocks.starts[:-1], size)
    front = Frontier(
        alignment=alignment,
        blocks=blocks,
        lineages={rank: Lineage(of_rank) for rank, of_rank in edges.items()},
        status=status,
        carried=carried(alignment, status),
        role=np.zeros(len(a), np.uint8),
        explained=np.zeros(len(a), bool),
        ancestry_incomplete=np.zeros(len(a), bool),
        only_parameters_missing=np.zeros(len(a), bool),
        parent_only_in_a=np.zeros(len(a), bool),
        predecessor_missing=np.zeros(len(a), bool),
        unfollowed=np.zeros(len(a), bool),
        first_order=a.order.copy(),
        block_of=block_of,
        place_of=place_of,
    )
    for layout, of_layout in _differing_blocks(front):
        front.layouts[layout] = _layout(front, layout, of_layout)
        _inside(front, front.layouts[layout], of_layout)
        _across(front, front.layouts[layout], of_layout)
    _copies(front)
    _begin(front)
    _scopes(front)
    _begin_anywhere(front)
    return front


def _begin(front: Frontier) -> None:
    """Make one record of each rank's first differing step an origin, if the step has no origin yet.

    Names of one tensor explain each other's gradients. So where the graph behind such a tensor
    is cut in one run alone, all differences of the step may seem to be explained.
    """
    a, rows = front.alignment.a, np.flatnonzero(front.status == DIFFERS)
    ranks = a.rank[rows]
    in_turn = np.lexsort((a.order[rows], a.step[rows], ranks))
    rows, ranks = rows[in_turn], ranks[in_turn]
    for of_rank in np.split(rows, np.flatnonzero(np.diff(ranks)) + 1) if len(rows) else ():
        _open_step(front, of_rank[a.step[of_rank] == a.step[of_rank[0]]])


def _begin_anywhere(front: Frontier) -> None:
    """Make one record of the first step in which any rank differs an origin, if there is none.

    Scopes may have explained the only origins of such a step: a gradient that is read after
    clipping may follow from those that explain each other.
    """
    a, rows = front.alignment.a, np.flatnonzero(front.status == DIFFERS)
    if len(rows):
        first = rows[a.step[rows] == a.step[rows].min()]
        _open_step(front, first[np.argsort(a.order[first], kind="stable")])


def _open_step(front: Frontier, rows: Array) -> None:
    """Make one of a step's rows that differ an origin, if each of them is explained.

    It is the first record whose ancestry is incomplete, or, without such a record, the first one.
    rows: in order of execution.
    """
    if front.explained[rows].all():
        lacking = rows[front.ancestry_incomplete[rows]]
        front.explained[(lacking if len(lacking) else rows)[0]] = False


def _differing_blocks(front: Frontier) -> Iterator[tuple[int, Array]]:
    """Yield each layout number with the blocks of that layout in which something differs."""
    blocks = np.unique(front.block_of[front.status == DIFFERS])
    for layout in np.unique(front.blocks.layout[blocks]).tolist():
        yield layout, blocks[front.blocks.layout[blocks] == layout]


def _layout(front: Frontier, number: int, of_layout: Array) -> StepLayout:
    """Return a layout of blocks, with the parents of each record that differs in one of its blocks.

    number: the layout's number. of_layout: the blocks of this layout in which something differs.
    """
    a, blocks = front.alignment.a, front.blocks
    example = blocks.example[number]
    rows = blocks.rows_of(example)
    rank, phase = int(blocks.rank[example]), int(blocks.phase[example])
    tensors = [a.tensors[one] for one in a.tensor[rows]]
    where = zip(tensors, a.pass_index[rows].tolist(), a.call[rows].tolist(), strict=True)
    keys = [(tensor.name, tensor.kind, pass_index, call) for tensor, pass_index, call in where]
    shapes = [a.shapes[one] for one in a.shape[rows]]
    own = [tensor for tensor in a.tensors if tensor.rank == rank]
    lineage = front.lineages[rank].step(
        dict(zip(keys, shapes, strict=True)),
        number=int(blocks.step[example]),
        phase=a.phases[phase],
        attempt=int(blocks.attempt[example]),
        recorded={(tensor.name, tensor.kind) for tensor in own},
        sampled={(tensor.name, tensor.kind) for tensor in own if not plain(tensor.mode)},
    )
    differs = np.zeros(len(rows), bool)
    for block in of_layout:
        differs |= front.status[blocks.rows_of(block)] == DIFFERS
    return layout_of(
        lineage,
        keys,
        [tensor.mode for tensor in tensors],
        train=_trains(a, phase),
        wanted=np.flatnonzero(differs),
    )


def _trains(table: Any, phase: int) -> bool:
    """Return whether a phase trains: it has records besides values, or its name is "train".

    phase: the phase's index in the table.
    """
    kinds = {table.tensors[one].kind for one in np.unique(table.tensor[table.phase == phase])}
    return table.phases[phase] == "train" or bool(kinds - {"value"})


def _inside(front: Frontier, layout: StepLayout, of_layout: Array) -> None:
    """Judge the rows of a layout's blocks by the parents that lie in the rows' own step.

    Fills `role`, `explained`, `ancestry_incomplete`, `only_parameters_missing`, `parent_only_in_a`,
    `unfollowed` and `first_order` of `front`, for all blocks at once.
    of_layout: the blocks of this layout in which something differs.
    """
    size = len(layout.keys)
    children, first = np.unique(layout.child, return_index=True)
    chunk = max(CHUNK // max(len(layout.child), size, 1), 1)
    for start in range(0, len(of_layout), chunk):
        blocks = of_layout[start : start + chunk]
        rows = front.blocks.rows[front.blocks.starts[blocks][:, None] + np.arange(size)]
        front.role[rows] = layout.role
        front.ancestry_incomplete[rows] = layout.lacking
        front.only_parameters_missing[rows] = layout.parameter_lacking
        front.unfollowed[rows] = layout.unfollowed
        if not len(children):
            continue
        _hand_on(front.first_order, rows, layout)
        parents = _parents(front, rows, layout)
        differs = np.logical_or.reduceat(parents == DIFFERS, first, axis=1)
        unknown = np.logical_or.reduceat(parents == UNMATCHED, first, axis=1)
        front.explained[rows[:, children]] |= differs
        front.ancestry_incomplete[rows[:, children]] |= unknown
        front.parent_only_in_a[rows[:, children]] |= unknown


def _parents(front: Frontier, rows: Array, layout: StepLayout) -> Array:
    """Return the status of the parent of each link of a layout in these blocks: (blocks, links).

    A parent that was recorded after its child counts as equal where the layout says that it must
    have come before (`timely`): where an optimizer steps inside a step, records of later passes did
    not go into its result.
    rows: the rows of each block, (blocks, records).
    """
    parents = front.carried[rows][:, layout.parent]
    timely = np.flatnonzero(layout.timely)
    order = front.alignment.a.order[rows]
    late = order[:, layout.parent[timely]] > order[:, layout.child[timely]]
    parents[:, timely] = np.where(late, EQUAL, parents[:, timely])
    return parents


def _hand_on(first_order: Array, rows: Array, layout: StepLayout) -> None:
    """Give all names of one tensor the order of execution at which its first name was recorded.

    first_order: the order of each row of A's table, changed in place. rows: the rows of each block,
    (blocks, records). layout: says which records are one tensor under two names.
    """
    child, parent = rows[:, layout.child[layout.named]], rows[:, layout.parent[layout.named]]
    while (first_order[child] < first_order[parent]).any():
        np.minimum.at(first_order, parent, first_order[child])


def _across(front: Frontier, layout: StepLayout, of_layout: Array) -> None:
    """Judge rows by their parents in other steps and phases.

    Fills `explained` and `ancestry_incomplete` of `front` (see `_away`). Marks rows in
    `predecessor_missing` where the step before was not recorded in both runs (except in step 0), or
    where the records of a step begin after its first pass.
    of_layout: the blocks of this layout in which something differs.
    """
    blocks = front.blocks
    steps = blocks.step[of_layout]
    before = front.blocks_before(of_layout)
    before = np.where(front.shared[np.maximum(before, 0)], before, -1)
    late = min(key[2] for key in layout.keys) > 0
    for block in of_layout if late else of_layout[(before < 0) & (steps > 0)]:
        front.predecessor_missing[blocks.rows_of(block)] = True
    for (steps_back, phase), links in layout.away.items():
        if phase and phase not in front.alignment.a.phases:
            continue
        code = list(front.alignment.a.phases).index(phase) if phase else 0
        phases = np.full(len(of_layout), code) if phase else blocks.phase[of_layout]
        target = blocks.find(blocks.rank[of_layout], phases, steps - steps_back)
        for number in np.unique(blocks.layout[target[target >= 0]]).tolist():
            which = (target >= 0) & (blocks.layout[np.maximum(target, 0)] == number)
            _away(front, links, of_layout[which], target[which])


def _away(front: Frontier, links: list[Any], children: Array, target: Array) -> None:
    """Judge records (children) by parents that lie in another step or phase than they do.

    A block is the records of one rank, phase and step; its layout says which records these are. All
    children lie in blocks of one layout, all parents in blocks of one other layout. A child is
    marked in `front` as `explained` where its parent differs, and as `ancestry_incomplete` where
    its parent has no record in A or no partner in B.
    links: from these children to their parents. children: the blocks of the children. target: for
        each block of `children`, the block of the parents; all target blocks have one layout.
    """
    a, blocks = front.alignment.a, front.blocks
    rows = blocks.rows_of(int(target[0]))
    where = (a.tensor[rows], a.pass_index[rows], a.call[rows])
    there: dict[tuple[str, str, int, int], int] = {}
    coordinates = zip(*(column.tolist() for column in where), strict=True)
    for at, (tensor, pass_index, call) in enumerate(coordinates):
        series = a.tensors[tensor]
        there[series.name, series.kind, pass_index, call] = at
    for link in links:
        name, kind, pass_index, call = link.key
        passes = range(pass_index, -1 if link.latest else pass_index - 1, -1)
        places = [there[key] for k in passes if (key := (name, kind, k, call)) in there]
        child = blocks.rows[blocks.starts[children] + link.child]
        if not places:
            front.ancestry_incomplete[child] = True
            continue
        status = front.carried[blocks.rows[blocks.starts[target] + places[0]]]
        front.explained[child] |= status == DIFFERS
        front.ancestry_incomplete[child] |= status == UNMATCHED


def _copies(front: Frontier) -> None:
    """Find the earlier records that unexplained values copy, where autograd does not follow these.

    If the record that was copied differs, the value is marked as explained. If it is equal in both
    runs, the value and the record are put into `front.copies`.
    """
    rows = front.origins
    rows = rows[np.isin(front.role[rows], (Role.LOOSE, Role.INPUT))]
    for row, source in copies(front.alignment, rows).items():
        if front.carried[source] == DIFFERS:
            front.explained[row] = True
        elif front.status[source] == EQUAL:
            front.copies[row] = source


def _scopes(front: Frontier) -> None:
    """Mark rows as explained where a record differs that may be an unknown parent of theirs.

    A scope is the records that may be parents without being known as such (`CauseScope`).
    """
    rows = front.origins
    scope = np.empty(len(rows), np.uint8)
    numbers = front.blocks.layout[front.block_of[rows]]
    for number in np.unique(numbers).tolist():
        which = numbers == number
        scope[which] = front.layouts[number].scope[front.place_of[rows[which]]]
    # A parent without a partner may have differed, and so may any record before it.
    orphaned = front.ancestry_incomplete[rows] & (front.role[rows] == Role.COMPUTED)
    orphaned &= (scope & np.uint8(CauseScope.STEPS | CauseScope.EARLIER)) == 0
    orphaned |= front.parent_only_in_a[rows] & (front.role[rows] == Role.COMPUTED)
    scope[orphaned] |= np.uint8(CauseScope.EARLIER)
    differs = front.carried == DIFFERS
    reach = Reach(front.alignment.a, differs, front.role, front.first_order, front.unfollowed)
    front.explained[rows] = reach.any_in(rows, scope)
