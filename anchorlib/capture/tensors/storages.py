"""Which anchored tensor lies in a piece of memory: what `detach` and `no_grad` hide from autograd.

    known.note(x, owner, followed=True)         # x was observed
    known.owner(x.detach())                     # (owner, "detach")

A tensor that shares the storage of an anchored one, and its version, holds what that one held. Weak
references keep no memory: a storage that is gone is known no more, and its number is not given
again before it is forgotten here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from anchorlib.record import DETACHED
from anchorlib.torch_private import MemoryRef, StorageRef, storage_key, version

__all__ = ["Storages"]

VIEW = "view"
_PRUNE_AT = 1024


class _Mark(NamedTuple):
    """geometry: offset, shape and strides. followed: whether gradients reach its tensor."""

    storage: StorageRef
    version: int
    geometry: tuple[Any, ...]
    owner: Any
    followed: bool


class Storages:
    """The last anchored tensor in each storage."""

    def __init__(self) -> None:
        self._marks: dict[int, _Mark] = {}
        self._prune_at = _PRUNE_AT

    def note(self, x: torch.Tensor, owner: Any) -> None:
        """`x`, which `owner` names, was observed."""
        if len(self._marks) >= self._prune_at:
            self._marks = {n: m for n, m in self._marks.items() if not m.storage.expired()}
            self._prune_at = 2 * len(self._marks) + _PRUNE_AT
        if x.layout is not torch.strided:  # what is sparse has no memory of its own
            return
        storage = MemoryRef(x.untyped_storage())
        mark = _Mark(storage, version(x), _geometry(x), owner, x.requires_grad)
        self._marks[storage.cdata] = mark

    def owner(self, x: torch.Tensor) -> tuple[Any, str] | None:
        """What `x` holds, and how it is another tensor than that; "" where it is none."""
        if x.layout is not torch.strided:
            return None
        storage = x.untyped_storage()
        mark = self._marks.get(storage_key(storage))
        if mark is None or mark.storage.expired() or mark.version != version(x):
            return None
        if mark.followed and not x.requires_grad:
            return mark.owner, DETACHED
        return mark.owner, "" if mark.geometry == _geometry(x) else VIEW

    def clear(self) -> None:
        """Forget all of them."""
        self._marks.clear()


def _geometry(x: torch.Tensor) -> tuple[Any, ...]:
    return x.storage_offset(), tuple(x.shape), x.stride()
