"""Rows in which a small graph is drawn, so that no edge runs through a node.

tanh   mm      each node stands in the row above the highest of those that take from it,
  ╲   ╱ ╲      and an edge that crosses a row has a place in it, as a node has
   mul   │
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

__all__ = ["rows"]

Edge: TypeAlias = tuple[int, int]
_Row: TypeAlias = dict[int, tuple[list[int], int]]


def rows(count: int, edges: Sequence[Edge]) -> list[list[int]]:
    """The rows from above, each from the left.

    count: of nodes, which are in order: edges lead from a lower to a higher number. edges: each
        once, those that lead to one node in the order of its inputs.
    A number from 0 on is a node, -1 - n is where edge n crosses the row.
    """
    height = _heights(count, edges)
    first = {maker: number for number, (maker, _) in reversed([*enumerate(edges)])}
    # Of each number in a row: what it leads to in the row below, and its turn among equals.
    found: list[_Row] = [{} for _ in range(max(height, default=-1) + 1)]
    for node in range(count):
        found[height[node]][node] = ([], first.get(node, node))
    for number, (maker, taker) in enumerate(edges):
        under = taker
        for row in range(height[taker] + 1, height[maker]):
            found[row][-1 - number] = ([under], number)
            under = -1 - number
        found[height[maker]][maker][0].append(under)
    return list(reversed(_ordered(found)))


def _heights(count: int, edges: Sequence[Edge]) -> list[int]:
    """How many rows stand below each node."""
    height = [0] * count
    for maker, taker in sorted(edges, reverse=True):
        height[maker] = max(height[maker], height[taker] + 1)
    return height


def _ordered(found: Sequence[_Row]) -> list[list[int]]:
    """Each row by where those below it stand, so that few edges cross. found: the lowest first."""
    ordered: list[list[int]] = []
    for row in found:
        below = ordered[-1] if ordered else []
        at = {one: place - len(below) / 2 for place, one in enumerate(below)}
        key = {
            one: (sum(at[other] for other in under) / max(len(under), 1), turn)
            for one, (under, turn) in row.items()
        }
        ordered.append(sorted(row, key=key.__getitem__))
    return ordered
