"""The edges of A, completed by those of B, told in A's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from anchorlib.diagnosis.pairing.alignment import Alignment
from anchorlib.record import Edges

__all__ = ["compiled", "statements"]

Place = tuple[str, str, int]


def compiled(ops: Iterable[str]) -> bool:
    """Whether these operations include a node that stands for compiled code."""
    return any(op.startswith("CompiledFunction") for op in ops)


def statements(alignment: Alignment, rank: int) -> list[Edges]:
    """The edges of one rank: A's, and B's for places where A's say nothing or less.

    A compiled run knows one node for all that it compiled, or none; its eager partner knows all.
    """
    own = list(alignment.a.edges.get(rank, ()))
    attempts = {edges.attempt for edges in own} | set(alignment.a.attempt.tolist()[-1:]) | {0}
    others = _by_place(_translated(alignment, rank))
    found = []
    mine = _by_place(own)
    for place, told in mine.items():
        better = others.get(place, ())
        if _poor(told) and better and not _poor(better):
            continue
        others.pop(place, None)
        found += told
    for told in others.values():
        found += [replace(edges, attempt=attempt) for attempt in attempts for edges in told]
    return found


def _translated(alignment: Alignment, rank: int) -> Iterable[Edges]:
    b = alignment.b.edges
    other = rank if rank in b else min(b, default=rank)
    names = {one.b: one.a for one in alignment.renamed}
    for edges in b.get(other, ()):
        step = max(edges.step - alignment.step_offset, 0)
        yield _renamed(replace(edges, step=step), names) if names else replace(edges, step=step)


def _renamed(edges: Edges, names: Mapping[str, str]) -> Edges:
    parents = [replace(one, name=names.get(one.name, one.name)) for one in edges.parents]
    return replace(edges, name=names.get(edges.name, edges.name), parents=tuple(parents))


def _by_place(told: Iterable[Edges]) -> dict[Place, list[Edges]]:
    found: dict[Place, list[Edges]] = {}
    for edges in told:
        found.setdefault((edges.phase, edges.name, edges.call), []).append(edges)
    return found


def _poor(told: Sequence[Edges]) -> bool:
    return all(edges.missing or compiled(edges.ops) for edges in told)
