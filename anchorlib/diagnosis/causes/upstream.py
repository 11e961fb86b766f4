"""All tensors from which a tensor was computed, as far as its gradient goes back."""

from __future__ import annotations

from collections.abc import Sequence

from anchorlib.record import Edges

__all__ = ["upstream"]


def upstream(edges: Sequence[Edges], name: str, phase: str) -> set[str]:
    """Return the names of all tensors and parameters that a tensor was computed from in a phase.

    Only edges inside one pass count. Tensors that were handed over without autograd are left out:
    no gradient goes back to them. edges: the stored edges of a rank. name: the tensor's name.
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
    """Return the names of the parents, in the same pass, to which the gradient goes back."""
    inputs = {-source for sources in edges.inputs for source in sources if source < 0}
    return {
        parent.name
        for number, parent in enumerate(edges.parents, 1)
        if parent.pass_index is None and (number in inputs or not edges.ops)
    }
