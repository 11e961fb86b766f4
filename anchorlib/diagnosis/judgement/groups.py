"""Origins that say the same thing, put together.

Records of one step and pass that hang on the same parents lie in one segment: between those parents
and them, one operation differs. The same place at later steps, in later passes and on other ranks
says nothing new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Role

__all__ = ["Segment", "segments"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Segment:
    """row: its first record in order of execution. rows: all first records of its places.

    amongst: how many records it stands for. ranks: those that have it at its first step and pass.
    ops: operations that all of its places have in common, else those of the first.
    parents: rows of the parents of the first.
    """

    row: int
    rows: tuple[int, ...]
    amongst: int
    ranks: tuple[int, ...]
    ops: tuple[str, ...]


def segments(frontier: Frontier) -> list[Segment]:
    """The segments of all origins, in A's order of execution."""
    a = frontier.alignment.a
    rows = frontier.origins
    rank = np.array([tensor.rank for tensor in a.tensors])[a.tensor[rows]]
    rows = rows[np.lexsort((rank, a.order[rows], a.step[rows]))]
    names: dict[tuple[str, str], int] = {}
    place = np.array(
        [names.setdefault((tensor.name, tensor.kind), len(names)) for tensor in a.tensors] or [0],
        np.int64,
    )[a.tensor[rows]]
    _, first, which = np.unique(place, return_index=True, return_inverse=True)
    amongst = np.bincount(which.reshape(-1), minlength=len(first))
    groups: dict[Any, list[int]] = {}
    for number in np.argsort(first, kind="stable").tolist():
        groups.setdefault(_segment(frontier, int(rows[first[number]])), []).append(number)
    told = []
    for numbers in groups.values():
        leaders = [int(rows[first[number]]) for number in numbers]
        at = place[first[numbers[0]]] == place
        told.append(_told(frontier, leaders, int(amongst[numbers].sum()), rows[at]))
    return told


def _told(frontier: Frontier, leaders: list[int], amongst: int, same: Array) -> Segment:
    a, row = frontier.alignment.a, leaders[0]
    at_once = same[(a.step[same] == a.step[row]) & (a.pass_index[same] == a.pass_index[row])]
    ranks = {a.tensors[one].rank for one in a.tensor[at_once].tolist()}
    ops = [frontier.ancestry(one).ops for one in leaders]
    common = tuple(op for op in ops[0] if all(op in other for other in ops[1:]))
    return Segment(row, tuple(leaders), amongst, tuple(sorted(ranks)), common or ops[0])


def _segment(frontier: Frontier, row: int) -> Any:
    """What rows of one segment have in common."""
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
