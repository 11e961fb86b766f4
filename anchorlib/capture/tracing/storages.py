"""Which operation made, or last wrote, the memory of a tensor."""

from __future__ import annotations

import torch

from anchorlib.torch_private import MemoryRef, StorageRef
from anchorlib.torch_private import storage_key as _key

__all__ = ["Makers", "storage_key"]


class Makers:
    """Of memory that was made or written in this step, the operation that did it last."""

    def __init__(self) -> None:
        self._made: dict[int, int] = {}
        self._held: dict[int, StorageRef] = {}

    def maker(self, x: torch.Tensor) -> int | None:
        """The number of the operation; None where none is known."""
        storage = _storage(x)
        return None if storage is None else self._made.get(_key(storage))

    def made(self, x: torch.Tensor, by: int) -> None:
        """The operation numbered `by` made or wrote the memory of `x`."""
        storage = _storage(x)
        if storage is None:
            return
        key = _key(storage)
        if key not in self._held:
            # While it is held no other storage can have this address.
            self._held[key] = MemoryRef(storage)
        self._made[key] = by

    def forget(self) -> None:
        """A step has ended."""
        self._made.clear()
        self._held.clear()


def storage_key(x: torch.Tensor) -> int | None:
    """What tells the memory of `x` from any other while it lives; None where it has none."""
    storage = _storage(x)
    return None if storage is None else _key(storage)


def _storage(x: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return x.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors and others have none
        return None
