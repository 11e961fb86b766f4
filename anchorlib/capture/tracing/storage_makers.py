"""Finds which operation made, or last wrote, the memory of a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import torch

from anchorlib.torch_private import MemoryRef, StorageRef
from anchorlib.torch_private import storage_key as _key

__all__ = ["StorageMakers", "storage_key", "storage_keys"]


_untyped_storage: Final = torch.Tensor.untyped_storage


class StorageMakers:
    """For each storage, the number of the operation that last made or wrote it in this step."""

    def __init__(self) -> None:
        self._made: dict[int | None, int] = {}
        self._held: dict[int, StorageRef] = {}

    def maker(self, x: torch.Tensor) -> int | None:
        """Return the number of the operation of this step that last wrote `x`; None if none did."""
        storage = _storage(x)
        return None if storage is None else self._made.get(_key(storage))

    def of(self, keys: Iterable[int | None]) -> list[int | None]:
        """Return the number of the operation that last wrote each of these storages in this step.

        keys: numbers that identify the storages, from `storage_keys`. The answer has None for a
        storage that no operation of the step has written, and for a key that is None.
        """
        return list(map(self._made.get, keys))

    def made(self, x: torch.Tensor, by: int) -> int | None:
        """Note that operation number `by` made or wrote the memory of `x`.

        Returns the key of the storage; None, with nothing noted, where `x` has no storage.
        """
        storage = _storage(x)
        if storage is None:
            return None
        key = _key(storage)
        if key not in self._held:
            # While the storage is held, no other storage can get its address.
            self._held[key] = MemoryRef(storage)
        self._made[key] = by
        return key

    def forget(self) -> None:
        """Drop all storages, as the step has ended."""
        self._made.clear()
        self._held.clear()


def storage_keys(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """Return for each tensor a number that identifies its storage; None if it has no storage."""
    try:
        return list(map(_key, map(_untyped_storage, tensors)))
    except (NotImplementedError, RuntimeError):  # a tensor has no storage
        return [storage_key(x) for x in tensors]


def storage_key(x: torch.Tensor) -> int | None:
    """Return a number that identifies the storage of `x` while it lives; None if `x` has none."""
    storage = _storage(x)
    return None if storage is None else _key(storage)


def _storage(x: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return x.untyped_storage()
    except (NotImplementedError, RuntimeError):  # e.g. sparse tensors
        return None
