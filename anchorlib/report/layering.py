"""Places the nodes of a small graph in rows, so that no edge is drawn through a node.

tanh   mm      each node is one row above the highest node that takes from it,
  ╲   ╱ ╲      and an edge that crosses a row is given a place in that row, as a node is
   mul   │
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

__all__ = ["rows"]

Edge: TypeAlias = tuple[int, int]
_Row: TypeAlias = dict[int, tuple[list[int], int]]


def rows(count: int, edges: Sequence[Edge]) -> list[list[int]]:
    """Return the rows of the graph's nodes from top to bottom, each from left to right.

    In a row, a number from 0 on is a node; -1 - n is the place where the edge `edges[n]` crosses
    the row.

    count: the number of nodes. The caller has numbered them so that each edge leads from a lower
    to a higher number.
    edges: distinct (maker, taker) pairs of nodes; the edges to the same taker stand in the order of
    the taker's inputs.
    """
    height = _heights(count, edges)
    first = {maker: number for number, (maker, _) in reversed([*enumerate(edges)])}
    # For each number in a row: the numbers it leads to in the row below, and what breaks ties.
    upward: list[_Row] = [{} for _ in range(max(height, default=-1) + 1)]
    for node in range(count):
        upward[height[node]][node] = ([], first.get(node, node))
    for number, (maker, taker) in enumerate(edges):
        under = taker
        for row in range(height[taker] + 1, height[maker]):
            upward[row][-1 - number] = ([under], number)
            under = -1 - number
        upward[height[maker]][maker][0].append(under)
    return list(reversed(_ordered(upward)))


def _heights(count: int, edges: Sequence[Edge]) -> list[int]:
    """Return for each node how many rows lie below its row, as few as possible.

    edges: (maker, taker) pairs of nodes. A maker has to be at least one row above each of its
    takers.
    """
    height = [0] * count
    for maker, taker in sorted(edges, reverse=True):
        height[maker] = max(height[maker], height[taker] + 1)
    return height


def _ordered(upward: Sequence[_Row]) -> list[list[int]]:
    """Return the rows of nodes and crossing edges, each sorted so that few edges cross.

    The entries of a row are sorted by the mean position, in the row below, of the nodes and edges
    that each entry leads to. upward: the rows from bottom to top, in which order they are returned;
    a row is {entry: (the entries of the row below that it leads to, a number that breaks ties)}.
    """
    ordered: list[list[int]] = []
    for row in upward:
        below = ordered[-1] if ordered else []
        at = {one: place - len(below) / 2 for place, one in enumerate(below)}
        key = {
            one: (sum(at[other] for other in under) / max(len(under), 1), turn)
            for one, (under, turn) in row.items()
        }
        ordered.append(sorted(row, key=key.__getitem__))
    return ordered
