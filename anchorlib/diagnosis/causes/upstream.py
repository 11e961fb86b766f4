"""All tensors from which a tensor was computed: those that its gradient goes back to."""

from __future__ import annotations

from collections.abc import Sequence

from anchorlib.record import Edges

__all__ = ["upstream"]


def upstream(edges: Sequence[Edges], name: str, phase: str) -> set[str]:
    """The names of all tensors and parameters that lead to a tensor in one pass of a phase.

    Tensors that were handed over without autograd are left out: no gradient goes back to them.
    """
    made_of: dict[str, set[str]] = {}
    for statement in edges:
        if statement.phase == phase:
            made_of.setdefault(statement.name, set()).update(_followed(statement))
    ancestors: set[str] = set()
    waiting = [name]
    while waiting:
        new = made_of.get(waiting.pop(), set()) - ancestors
        ancestors |= new
        waiting += new
    return ancestors - {name}


def _followed(edges: Edges) -> set[str]:
    """The parents in the statement's own pass to which autograd leads."""
    inputs = {-source for sources in edges.inputs for source in sources if source < 0}
    return {
        parent.name
        for number, parent in enumerate(edges.parents, 1)
        if parent.pass_index is None and (number in inputs or not edges.ops)
    }
