"""torch's functions that flatten nested lists, tuples and dicts, and rebuild them."""

from __future__ import annotations

from typing import Any, Final

from anchorlib.torch_private.door import DOORS, AffectedPrograms, MovedError, is_a, private

__all__ = ["TreeSpec", "tree_flatten", "tree_leaves", "tree_map", "tree_unflatten"]

_LOST: Final = "anchorlib.poptorch cannot cut inputs into micro-batches"


def _door(name: str) -> Any:
    full = f"torch.utils._pytree.{name}"

    def gone(*_arguments: Any, **_named: Any) -> Any:
        raise MovedError(DOORS[full].said)

    purpose = "tensors in lists, tuples and dicts of any depth"
    kind = is_a(type) if name == "TreeSpec" else callable
    return private(full, purpose, _LOST, instead=gone, reach=AffectedPrograms.POPTORCH, kind=kind)


TreeSpec: Any = _door("TreeSpec")
tree_flatten = _door("tree_flatten")
tree_leaves = _door("tree_leaves")
tree_map = _door("tree_map")
tree_unflatten = _door("tree_unflatten")
