"""The records that may explain a difference of a record, resolved once per layout of a step.

The lineage knows a record's parents, from which the record was computed. Other parents it cannot
know: a scope, a set of earlier records, stands for these. Scopes are wide, so that a difference
which an unknown parent may explain is never taken for an origin:

    value of a parameter    its `updated` of the step before; all records of earlier steps; in a
                            later pass also those of earlier passes of the step (SAM)
    grad of a parameter     its pass_grads; all that the step's passes computed before, on any rank
                            (clipping by global norm, all-reduction, unscaling)
    updated, delta, opt.*   its own gradient, value and state, and the scope of `grad`
    loose values            all computed and loose values that were recorded before; and the record
                            of which they are a copy
    inputs                  the record of which they are a copy, and no other
    buffers                 all computed values that were recorded before
    computed records        loose values that were recorded before; inputs and buffers of the step;
                            where operations read what autograd does not follow, also the step's
                            values that were computed without gradients
    collectives             this pass on other ranks
    incomplete ancestry     all records before

Loose values are values whose origin autograd does not know. A record explains only records that
come after it. So where two optimizers step in one step, the first one's update depends only on the
passes before that update.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes.ancestry import Link, RecordAncestry
from anchorlib.diagnosis.causes.lineage import StepLineage
from anchorlib.diagnosis.pairing import compiled

__all__ = ["Away", "CauseScope", "Role", "StepLayout", "layout_of", "plain"]

Array = np.ndarray[Any, Any]
RecordKey = tuple[str, str, int, int]

INPUT = re.compile(r"(^|\.)input(:|$)")
COLLECTIVE = re.compile(
    r"all_?gather|all_?reduce|reduce_?scatter|all_?to_?all|broadcast|c10d|syncbatchnorm"
    r"|totorchtensor|fromtorchtensor|redistribute|waittensor",
    re.IGNORECASE,
)


class Role(IntEnum):
    """What a record is in its step, which decides what records it may have been computed from."""

    COMPUTED = 0  # a value or gradient whose parents edges state
    PARAMETER = 1  # the value of a parameter
    OPTIMIZER = 2  # recorded at the optimizer's step: grad of a parameter, updated, delta, opt.*
    LOOSE = 3  # a value of which autograd knows no origin
    INPUT = 4  # a loose value that a watched model was given
    BUFFER = 5  # a buffer of a watched model, as a pass finds it


class CauseScope(IntFlag):
    """Sets of records that, besides a record's known parents, may explain why it differs."""

    NONE = 0
    STEPS = 1  # all records of earlier steps
    PASSES = 2  # all that earlier passes of the step computed, on any rank
    BODY = 4  # all that the step's passes have computed by then, on any rank
    RANKS = 8  # all that this or an earlier pass of the step computed on other ranks
    EARLIER = 16  # all records before this one on the rank
    LOOSE = 32  # loose values that were recorded before; inputs and buffers, of the step alone
    COMPUTED = 64  # computed values that were recorded before on the rank
    UNFOLLOWED = 128  # values that modules computed without gradients before, in the step


def plain(mode: str) -> bool:
    """Return whether a mode keeps every observation of the steps it records.

    mode: the mode's text, such as "all" or "every_n:unit=step".
    """
    return mode in ("all", "summary") or (mode.startswith("every_n") and ":unit=step" in mode)


@dataclass(frozen=True, slots=True)
class Away:
    """A link to a parent in another step or phase.

    child: the child's index in its layout. key: the parent's (name, kind, pass, call). latest:
    whether the parent is the last record at or before the pass that the key states.
    """

    child: int
    key: RecordKey
    latest: bool


@dataclass(slots=True)
class StepLayout:
    """The parents of the records of all blocks of one layout.

    A block is the records of one rank, phase and step; blocks of one layout have records of equal
    keys and equal edges. A place is the index of a record in the layout.

    keys: the key (name, kind, pass, call) of each place. place: key -> place.
    child, parent: the places that each link inside the block connects, ascending by child.
    timely: for each link, whether its parent counts only if it was recorded before the child. That
        holds where the child is a parameter or made by an optimizer, and both records were written
        when their tensors were made.
    named: for each link, whether child and parent are one tensor under two names.
    away: the links to parents in other blocks, by (how many steps the parent lies before the child,
        the parent's phase, or "" for the child's own phase).
    role, scope: the role and the scope of each place.
    lacking: whether the ancestry of each place is incomplete.
    parameter_lacking: whether parameters are all that the block's records lack of that ancestry.
    ancestry: the parents of each place that differs in a block.
    unfollowed: whether each place is a value that a module computed without gradients.
    """

    keys: list[RecordKey]
    place: dict[RecordKey, int]
    lineage: StepLineage
    role: Array
    scope: Array
    lacking: Array
    parameter_lacking: Array
    unfollowed: Array
    child: Array = field(default_factory=lambda: np.empty(0, np.int64))
    parent: Array = field(default_factory=lambda: np.empty(0, np.int64))
    timely: Array = field(default_factory=lambda: np.empty(0, bool))
    named: Array = field(default_factory=lambda: np.empty(0, bool))
    away: dict[tuple[int, str], list[Away]] = field(default_factory=dict)
    ancestry: dict[int, RecordAncestry] = field(default_factory=dict)

    def find(self, key: RecordKey, *, latest: bool = False) -> int | None:
        """Return the place (index in this layout) of a record; None where the layout lacks it.

        key: the record's (name, kind, pass, call). latest: whether to take the last such record at
        or before the key's pass, as for the value of a parameter.
        """
        name, kind, pass_index, call = key
        for earlier in range(pass_index, -1 if latest else pass_index - 1, -1):
            place = self.place.get((name, kind, earlier, call))
            if place is not None:
                return place
        return None


def layout_of(
    lineage: StepLineage, keys: list[RecordKey], modes: list[str], *, train: bool, wanted: Array
) -> StepLayout:
    """Return a layout, with the parents of the places in `wanted` resolved.

    lineage: the lineage of the step. keys, modes: the key and the mode of each place (record of the
        step). train: whether optimizers step in the phase.
    """
    place: dict[RecordKey, int] = {}
    for number in sorted(range(len(keys)), key=lambda one: plain(modes[one])):
        place[keys[number]] = number  # modes that keep every record come last, and win
    count = len(keys)
    layout = StepLayout(
        keys,
        place,
        lineage,
        role=roles(lineage, keys),
        scope=np.zeros(count, np.uint8),
        lacking=np.zeros(count, bool),
        parameter_lacking=np.zeros(count, bool),
        unfollowed=np.array(
            [
                kind == "value" and not lineage.is_followed(name, pass_index, call)
                for name, kind, pass_index, call in keys
            ],
            bool,
        ),
    )
    links: list[tuple[int, int, bool]] = []
    for number in wanted.tolist():
        ancestry = layout.ancestry[number] = _ancestry(layout, number)
        for link in ancestry.parents:
            _resolve(layout, number, link, links)
        scope = _scope(layout, number, ancestry, train=train)
        if not plain(modes[number]):
            layout.lacking[number] = True
            scope |= CauseScope.EARLIER
        layout.scope[number] = scope
    links.sort()
    columns = np.array(links, np.int64).reshape(-1, 3)
    layout.child, layout.parent, layout.named = columns[:, 0], columns[:, 1], columns[:, 2] > 0
    # A folded record is written when its window ends, long after it was made.
    at_once = np.array([plain(mode) for mode in modes], bool)
    stepped = np.isin(layout.role, (Role.OPTIMIZER, Role.PARAMETER))
    layout.timely = at_once[layout.child] & at_once[layout.parent] & stepped[layout.child]
    return layout


def roles(lineage: StepLineage, keys: list[RecordKey]) -> Array:
    """Return the `Role` of each record of a step, known by its name, kind and parents.

    lineage: what the step's records were computed from. keys: the key of each record.
    """
    parameters = set(lineage.parameters)
    # Where compiled code hides parameters from autograd, kinds that only parameters have show them.
    parameters |= {
        name
        for name, kind, _, _ in keys
        if kind in ("pass_grad", "updated", "delta") or kind.startswith("opt.")
    }
    loose = set(lineage.loose)
    role_of_key = [_role(key, parameters, loose, lineage.buffers) for key in keys]
    return np.array(role_of_key, np.uint8)


def _role(
    key: RecordKey, parameters: set[str], loose: set[RecordKey], buffers: Collection[str]
) -> Role:
    name, kind, _, _ = key
    if kind == "pass_grad":
        return Role.COMPUTED
    if kind not in ("value", "grad"):
        return Role.OPTIMIZER
    if name in parameters:
        return Role.PARAMETER if kind == "value" else Role.OPTIMIZER
    if key not in loose:
        return Role.COMPUTED
    if name in buffers:
        return Role.BUFFER
    return Role.INPUT if INPUT.search(name) else Role.LOOSE


def _ancestry(layout: StepLayout, number: int) -> RecordAncestry:
    if layout.role[number] in (Role.LOOSE, Role.INPUT, Role.BUFFER):
        return RecordAncestry()
    name, kind, pass_index, call = layout.keys[number]
    return layout.lineage.parents(name, kind, pass_index, call)


def _resolve(
    layout: StepLayout, number: int, link: Link, links: list[tuple[int, int, bool]]
) -> None:
    """Add the parent of a link to `links`, or to `layout.away`, or mark its child as lacking.

    number: the place of the child. links: (child, parent, whether both are one tensor) of each link
        inside the block.
    """
    key = (link.name, link.kind, link.pass_index, link.call or 0)
    latest = link.call is None and link.kind == "value"
    if link.steps_back or link.phase:
        where = (link.steps_back, link.phase)
        layout.away.setdefault(where, []).append(Away(number, key, latest))
        return
    parent = layout.find(key, latest=latest)
    if parent is None:
        layout.lacking[number] = True
        layout.parameter_lacking[number] = latest
    elif parent != number:
        named = not (link.ops or link.saved) and layout.role[number] == Role.COMPUTED
        links.append((number, parent, named))


def _scope(layout: StepLayout, number: int, ancestry: RecordAncestry, *, train: bool) -> CauseScope:
    role, pass_index = layout.role[number], layout.keys[number][2]
    if role == Role.INPUT:
        return CauseScope.NONE
    if role == Role.LOOSE:
        return CauseScope.STEPS | CauseScope.COMPUTED | CauseScope.LOOSE
    if role == Role.BUFFER:
        return CauseScope.STEPS | CauseScope.COMPUTED
    if role == Role.PARAMETER:
        if not train:
            return CauseScope.STEPS | CauseScope.EARLIER
        return CauseScope.STEPS | CauseScope.PASSES if pass_index else CauseScope.STEPS
    if role == Role.OPTIMIZER:
        # A further call is an optimizer that stepped again inside the step.
        again = CauseScope.EARLIER if layout.keys[number][3] else CauseScope.NONE
        return CauseScope.STEPS | CauseScope.BODY | again
    return _scope_of_computed(layout, number, ancestry)


def _scope_of_computed(layout: StepLayout, number: int, ancestry: RecordAncestry) -> CauseScope:
    # Operations read indices, masks and labels without a trace in the graph.
    scope = CauseScope.LOOSE
    if ancestry.untracked:
        scope |= CauseScope.UNFOLLOWED
    name = layout.keys[number][0]
    if any(map(COLLECTIVE.search, ancestry.ops)) or layout.lineage.is_sharded(name):
        scope |= CauseScope.RANKS
    parameters = {f"{one} was not recorded there" for one in ancestry.unrecorded}
    unknown = set(ancestry.missing) - parameters or compiled(ancestry.ops)
    if unknown:
        layout.lacking[number] = True
        layout.parameter_lacking[number] = False
        return scope | CauseScope.EARLIER
    if ancestry.unseen:
        # Backward may have read unrecorded values, which earlier passes may have changed.
        scope |= CauseScope.STEPS | CauseScope.PASSES
    if parameters or layout.lacking[number]:
        layout.parameter_lacking[number] |= bool(parameters)
        layout.lacking[number] = True
        # Parameters change between steps and passes, never inside one.
        scope |= CauseScope.STEPS | CauseScope.PASSES
    return scope
