"""Origins in groups: all origins of a group have one cause.

Records of one step and pass with equal parents lie in one group: one operation between those
parents and the records differs. Origins of a tensor at later steps, in later passes and on other
ranks show nothing new, and belong to the group of the tensor's first origin. All that an
optimizer makes in one step (`updated`, `delta`, `opt.*` of every parameter) lies in one group, so
that two updates are judged together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Role

__all__ = ["OriginGroup", "groups_of_origins"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class OriginGroup:
    """Origins with one cause. All records are given as rows of A's table.

    row: the first of these origins in order of execution.
    rows: for each name and kind among these origins, the first of them.
    amongst: how many origins the group has.
    elsewhere: the first origin of each phase with the name and kind of `row`, other than `row`.
    on_ranks: the origins with the name and kind of `row`, in its step and pass, on all ranks.
    ranks: the ranks of `on_ranks`, or the only rank to which the group was narrowed.
    ops: the operations that all of `rows` have in common; if they have none, those of `row`.
    """

    row: int
    rows: tuple[int, ...]
    amongst: int
    ranks: tuple[int, ...]
    ops: tuple[str, ...]
    elsewhere: tuple[int, ...] = ()
    on_ranks: tuple[int, ...] = ()


def groups_of_origins(frontier: Frontier) -> list[OriginGroup]:
    """Return the groups of all origins, in the order of their first origins.

    Earlier steps come first, and within a step the records that A executed earlier.
    """
    a = frontier.alignment.a
    rows = frontier.origins
    rank = a.rank[rows]
    rows = rows[np.lexsort((rank, a.order[rows], a.step[rows]))]
    names: dict[tuple[str, str], int] = {}
    place = np.array(
        [names.setdefault((tensor.name, tensor.kind), len(names)) for tensor in a.tensors] or [0],
        np.int64,
    )[a.tensor[rows]]
    _, first, which = np.unique(place, return_index=True, return_inverse=True)
    amongst = np.bincount(which.reshape(-1), minlength=len(first))
    members: dict[Any, list[int]] = {}
    for number in np.argsort(first, kind="stable").tolist():
        members.setdefault(_key(frontier, int(rows[first[number]])), []).append(number)
    groups = []
    for numbers in members.values():
        leaders = [int(rows[first[number]]) for number in numbers]
        at = place[first[numbers[0]]] == place
        groups.append(_group_of(frontier, leaders, int(amongst[numbers].sum()), rows[at]))
    return groups


def _group_of(
    frontier: Frontier, leaders: list[int], amongst: int, rows_of_tensor: Array
) -> OriginGroup:
    a, row = frontier.alignment.a, leaders[0]
    at_once = rows_of_tensor[
        (a.step[rows_of_tensor] == a.step[row])
        & (a.pass_index[rows_of_tensor] == a.pass_index[row])
    ]
    ranks = {a.tensors[number].rank for number in a.tensor[at_once].tolist()}
    ops = [frontier.ancestry(leader).ops for leader in leaders]
    common = tuple(op for op in ops[0] if all(op in other for other in ops[1:]))
    _, first = np.unique(a.phase[rows_of_tensor], return_index=True)
    elsewhere = tuple(one for one in rows_of_tensor[np.sort(first)].tolist() if one != row)
    ranked = tuple(sorted(ranks))
    return OriginGroup(
        row=row,
        rows=tuple(leaders),
        amongst=amongst,
        ranks=ranked,
        ops=common or ops[0],
        elsewhere=elsewhere,
        on_ranks=tuple(at_once.tolist()),
    )


def _key(frontier: Frontier, row: int) -> Any:
    """Return the key of the group to which a row belongs; rows of one group have equal keys."""
    a = frontier.alignment.a
    role = Role(int(frontier.role[row]))
    where = (int(a.step[row]), int(a.pass_index[row]), int(a.phase[row]))
    if role in (Role.PARAMETER, Role.LOOSE, Role.INPUT, Role.BUFFER) and row not in frontier.copies:
        return (*where, role)
    kind = a.tensors[a.tensor[row]].kind
    if role == Role.OPTIMIZER:
        # An optimizer does to every parameter what it does to one.
        return (*where, role, "grad" if kind == "grad" else "updated")
    parents = tuple(sorted(frontier.parents(row)))
    return (*where, kind == "value", parents or row)
