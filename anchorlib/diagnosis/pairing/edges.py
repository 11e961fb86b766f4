"""The edges of A, completed by those of B.

The edges of a tensor state from which tensors it was computed, and by which operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from anchorlib.diagnosis.pairing.alignment import Alignment
from anchorlib.diagnosis.pairing.tables import Table
from anchorlib.record import Edges

__all__ = ["compiled", "opaque", "statements", "with_operations"]

Place = tuple[str, str, int]
_MODULE = ".forward"


def compiled(ops: Iterable[str]) -> bool:
    """Return whether these operations include a node that stands for compiled code.

    ops: names of autograd nodes.
    """
    return any(op.startswith("CompiledFunction") for op in ops)


def opaque(ops: Iterable[str]) -> bool:
    """Return whether an entry of `ops` names a module, such as "Linear.forward", not an operation.

    Such an entry stands for a call under `no_grad`: autograd follows nothing there, so that the
    operations which the module called are not known. ops: names of autograd nodes, from the edges
    of a value.
    """
    return any(op.endswith(_MODULE) for op in ops)


def with_operations(table: Table, rank: int, name: str) -> Edges | None:
    """Return the first stored edges of a tensor that name its operations; None without such edges.

    For a module that is called under `no_grad` and with gradients, only the edges of calls with
    gradients name the operations. The other calls run these operations, too.
    """
    named = (edges for edges in table.edges.get(rank, ()) if edges.name == name)
    return next((edges for edges in named if not (edges.missing or opaque(edges.ops))), None)


def statements(alignment: Alignment, rank: int) -> list[Edges]:
    """Return the edges of one rank: A's, and B's for calls of which A has none, or only poor ones.

    The edges of compiled code are poor: it has a single autograd node, or none, while the edges of
    an eager run name the operations. B's edges are given in A's names and steps, and repeated for
    every attempt at which A has edges, its attempt 0, and the last attempt in its table.
    """
    own = list(alignment.a.edges.get(rank, ()))
    attempts = {edges.attempt for edges in own} | set(alignment.a.attempt.tolist()[-1:]) | {0}
    others = _by_place(_translated(alignment, rank))
    chosen = []
    mine = _by_place(own)
    for place, edges_here in mine.items():
        better = others.get(place, ())
        if _poor(edges_here) and better and not _poor(better):
            continue
        others.pop(place, None)
        chosen += edges_here
    for edges_here in others.values():
        chosen += [replace(edges, attempt=attempt) for attempt in attempts for edges in edges_here]
    return chosen


def _translated(alignment: Alignment, rank: int) -> Iterable[Edges]:
    """Yield B's edges of a rank in A's names and steps.

    If B has no edges of this rank, those of its lowest rank are taken. A step before A's step 0
    becomes 0.
    """
    b = alignment.b.edges
    other = rank if rank in b else min(b, default=rank)
    names = {renaming.b: renaming.a for renaming in alignment.renamed}
    for edges in b.get(other, ()):
        step = max(edges.step - alignment.step_offset, 0)
        yield _renamed(replace(edges, step=step), names) if names else replace(edges, step=step)


def _renamed(edges: Edges, names: Mapping[str, str]) -> Edges:
    parents = [
        replace(parent, name=names.get(parent.name, parent.name)) for parent in edges.parents
    ]
    return replace(edges, name=names.get(edges.name, edges.name), parents=tuple(parents))


def _by_place(statements: Iterable[Edges]) -> dict[Place, list[Edges]]:
    """Return the edges by (phase, name, call) of the forward call that made their tensor."""
    by_place: dict[Place, list[Edges]] = {}
    for edges in statements:
        by_place.setdefault((edges.phase, edges.name, edges.call), []).append(edges)
    return by_place


def _poor(statements: Sequence[Edges]) -> bool:
    """Return whether each of these edges may lack parents, or stands for compiled code."""
    return all(edges.missing or compiled(edges.ops) for edges in statements)
