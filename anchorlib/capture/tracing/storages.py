"""Which operation made, or last wrote, the memory of a tensor."""

from __future__ import annotations

import torch

from anchorlib.torch_private import MemoryRef, StorageRef
from anchorlib.torch_private import storage_key as _key

__all__ = ["Makers", "storage_key"]


class Makers:
    """The operation that last made or wrote each storage in this step."""

    def __init__(self) -> None:
        self._made: dict[int, int] = {}
        self._held: dict[int, StorageRef] = {}

    def maker(self, x: torch.Tensor) -> int | None:
        """The number of the operation that last wrote `x`; None for memory from before the step."""
        storage = _storage(x)
        return None if storage is None else self._made.get(_key(storage))

    def made(self, x: torch.Tensor, by: int) -> None:
        """Note that operation number `by` made or wrote the memory of `x`."""
        storage = _storage(x)
        if storage is None:
            return
        key = _key(storage)
        if key not in self._held:
            # While the storage is held, no other storage can get its address.
            self._held[key] = MemoryRef(storage)
        self._made[key] = by

    def forget(self) -> None:
        """Drop the storages of the step that has ended."""
        self._made.clear()
        self._held.clear()


def storage_key(x: torch.Tensor) -> int | None:
    """Identifies the storage of `x` while that storage lives; None where `x` has no storage."""
    storage = _storage(x)
    return None if storage is None else _key(storage)


def _storage(x: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return x.untyped_storage()
    except (NotImplementedError, RuntimeError):  # e.g. sparse tensors
        return None
