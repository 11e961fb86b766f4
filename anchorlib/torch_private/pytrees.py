"""torch's own way to take nested lists, tuples and dicts apart, and to put them together again."""

from __future__ import annotations

from typing import Any, Final

from anchorlib.torch_private.door import DOORS, MovedError, Reach, private

__all__ = ["TreeSpec", "tree_flatten", "tree_leaves", "tree_map", "tree_unflatten"]

_LOST: Final = "anchorlib.poptorch cannot cut inputs into micro-batches"


def _found(name: str) -> Any:
    full = f"torch.utils._pytree.{name}"

    def gone(*_arguments: Any, **_named: Any) -> Any:
        raise MovedError(DOORS[full].said)

    purpose = "tensors in lists, tuples and dicts of any depth"
    return private(full, purpose, _LOST, instead=gone, reach=Reach.POPTORCH)


TreeSpec: Any = _found("TreeSpec")
tree_flatten = _found("tree_flatten")
tree_leaves = _found("tree_leaves")
tree_map = _found("tree_map")
tree_unflatten = _found("tree_unflatten")
