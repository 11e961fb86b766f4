"""Finds the anchored tensor whose memory a tensor without a graph shares, as after `detach`.

    known.note(x, identity)              # x, which requires gradients, was observed
    known.anchored_tensor_of(x.detach()) # (identity, "detach")

A tensor with the storage and the version of an anchored tensor has the same values. Weak references
to storages keep no memory alive. The key of a freed storage is not reused as long as a weak
reference to the storage is kept here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from anchorlib.record import DETACHED
from anchorlib.torch_private import MemoryRef, StorageRef, storage_key, version

__all__ = ["Storages"]

VIEW = "view"
_PRUNE_AT = 1024


class _AnchoredMemory(NamedTuple):
    """The tensor that was anchored last in a storage.

    version: torch's count of writes to the memory, when the tensor was anchored. geometry: offset,
        shape, strides. identity: what identifies the tensor to the caller. followed: whether
        autograd follows the tensor, which requires gradients.
    """

    storage: StorageRef
    version: int
    geometry: tuple[Any, ...]
    identity: Any
    followed: bool


class Storages:
    """Remembers the tensor that was anchored last in each storage."""

    def __init__(self) -> None:
        self._anchored: dict[int, _AnchoredMemory] = {}
        self._prune_at = _PRUNE_AT

    def note(self, x: torch.Tensor, identity: Any) -> None:
        """Note that `x` was anchored; does nothing for a sparse or nested tensor.

        identity: what `anchored_tensor_of` is to return for tensors with the memory of `x`.
        """
        if len(self._anchored) >= self._prune_at:
            self._anchored = {n: m for n, m in self._anchored.items() if not m.storage.expired()}
            self._prune_at = 2 * len(self._anchored) + _PRUNE_AT
        if not _has_geometry(x):
            return
        storage = MemoryRef(x.untyped_storage())
        known = _AnchoredMemory(storage, version(x), _geometry(x), identity, x.requires_grad)
        self._anchored[storage.cdata] = known

    def anchored_tensor_of(self, x: torch.Tensor) -> tuple[Any, str] | None:
        """Return the `identity` of the tensor last anchored in the memory of `x`; None without one.

        The second item says how `x` differs from that tensor: "detach", "view", or "" if it does
        not. None is also returned where the memory was written after that tensor was anchored.
        """
        if not _has_geometry(x):
            return None
        storage = x.untyped_storage()
        known = self._anchored.get(storage_key(storage))
        if known is None or known.storage.expired() or known.version != version(x):
            return None
        if known.followed and not x.requires_grad:
            return known.identity, DETACHED
        return known.identity, "" if known.geometry == _geometry(x) else VIEW

    def clear(self) -> None:
        """Forget all anchored tensors."""
        self._anchored.clear()


def _has_geometry(x: torch.Tensor) -> bool:
    """Return whether `x` has a storage and a shape, which sparse and nested tensors lack."""
    return x.layout is torch.strided and not x.is_nested


def _geometry(x: torch.Tensor) -> tuple[Any, ...]:
    return x.storage_offset(), tuple(x.shape), x.stride()
