"""Private names of tensors: their hooks, their version, their memory, and the tensors inside."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from operator import attrgetter
from typing import Any, Final, Protocol

import torch

from anchorlib.torch_private.door import (
    DOORS,
    AffectedPrograms,
    MovedError,
    is_a,
    is_attribute,
    later,
    private,
    tell,
)

__all__ = [
    "NO_LEAF_HOOKS",
    "MemoryRef",
    "StorageRef",
    "data_address",
    "dlpack_exchange",
    "has_local_tensor",
    "hooks_are_known",
    "hooks_of",
    "hooks_of_new",
    "local_tensor",
    "register_hook",
    "sparse_parts",
    "storage_key",
    "version",
]

# -- hooks

_HOOKS: Final = "torch.Tensor._backward_hooks"
_hooks: Any = private(
    _HOOKS,
    "the hooks of a tensor, to find ours among them",
    "gradients of anchored leaves are not recorded",
    kind=is_attribute,
)
hooks_are_known: Final = _hooks is not None
"""Whether the hooks of a tensor can be read."""
NO_LEAF_HOOKS: Final = DOORS[_HOOKS].said
"""Why the gradient of a leaf is not recorded where hooks cannot be read."""

_NODE_TAKES: Final = "torch._C._FunctionBase._register_hook_dict"
_node_takes: Any = private(
    _NODE_TAKES,
    "registers a hook on a node's output without a handle, which costs more than all the rest",
    "each gradient costs a microsecond more",
    kind=is_attribute,
)
_QUICK: Final = hooks_are_known and _node_takes is not None


def hooks_of(x: torch.Tensor) -> dict[Any, Any]:
    """Return the hooks of a tensor, by key; empty if it has none, or if this torch hides them."""
    return (x._backward_hooks or {}) if hooks_are_known else {}


def hooks_of_new(x: torch.Tensor) -> dict[Any, Any]:
    """Return a leaf's dict of hooks, which is created if the leaf has none yet."""
    if x._backward_hooks is None:
        x._backward_hooks = OrderedDict()
    return x._backward_hooks


def register_hook(x: torch.Tensor, node: Any, hook: Callable[[torch.Tensor], Any]) -> None:
    """Let `hook` be called with the gradient of `x`, as long as the graph lives.

    Does what `Tensor.register_hook` does, in the same order, but makes no handle for removing the
    hook, which would cost more than the rest. The hook is added to the tensor's dict of hooks, of
    which torch calls the values; the keys need only differ.
    node: the autograd node that made `x`.
    """
    if type(x) is not torch.Tensor or not _QUICK:  # a subclass may override `register_hook`
        x.register_hook(hook)
        return
    hooks: Any = x._backward_hooks
    if hooks is None:
        hooks = x._backward_hooks = OrderedDict()
        # Looked up on the type: a user may set any attribute on a custom Function's node.
        type(node)._register_hook_dict(node, x)
    hooks[hook] = hook


# -- memory

_changes = count(1)
_version: Any = private(
    "torch.Tensor._version",
    "how often the memory of a tensor was written",
    "detached tensors are not traced to the tensors that they come from",
    kind=is_attribute,
)


def version(x: torch.Tensor) -> int:
    """Return how often the memory of `x` was written in place.

    An inference tensor has no count: 0 is returned. Where this torch lacks the count, each call
    returns a new number, as if `x` had been written since the last call.
    """
    if _version is None:
        return next(_changes)
    return 0 if x.is_inference() else x._version


class StorageRef(Protocol):
    """A weak reference to a storage."""

    cdata: int

    def expired(self) -> bool:
        """Return whether the storage has been freed."""


class _Gone:
    """Stands in for torch's weak reference to a storage if torch lacks it; counts as expired."""

    def __init__(self, storage: Any) -> None:
        self.cdata = storage_key(storage)

    def expired(self) -> bool:
        """Return True, since nothing tells whether the storage still lives."""
        return True


MemoryRef: Any = private(
    "torch.multiprocessing.reductions.StorageWeakRef",
    "recognizes a storage without keeping it alive",
    "detached tensors are not traced to the tensors that they come from",
    instead=_Gone,
    kind=is_a(type),
)
_cdata: Any = private(
    "torch.UntypedStorage._cdata",
    "identifies a storage while it lives",
    "detached tensors without elements are mistaken for one another",
    kind=is_attribute,
)


def _by_address(storage: Any) -> int:
    return int(storage.data_ptr())


storage_key: Callable[[Any], int] = _by_address if _cdata is None else attrgetter("_cdata")
"""Returns a number that identifies a storage while the storage lives."""


_storage_address: Any = private(
    "torch._C._data_address",
    "the address of a tensor's memory, without copying the memory of a lazy clone",
    "digests of the masks between two anchors are not recorded; "
    "a traced step copies tensors that are lazy clones",
    instead=lambda _x: 0,
)


def data_address(x: torch.Tensor) -> int:
    """Return the address of the first value of `x`, without copying the memory of a lazy clone.

    For other tensors `Tensor.data_ptr` gives the same address; of a lazy clone it first makes a
    real copy. Returns 0 for a tensor that has no memory, and where this torch lacks the function
    that is used here. Raises RuntimeError for a tensor without a storage.
    """
    address: int = _storage_address(x)  # of the storage, so that views have that of their base
    offset: Any = x.storage_offset()  # mostly 0; a traced step asks for thousands of addresses
    return address + offset * x.itemsize if offset and address else address


dlpack_exchange: Any = private(
    "torch.Tensor.__dlpack_c_exchange_api__",
    "lets compiled code read an array without a call of Python",
    "each record costs a microsecond more",
    since="2.10",
    kind=lambda thing: type(thing).__name__ == "PyCapsule",
)


# -- parts

_sparse: Any = private(
    "torch.Tensor._indices",
    "the indices and values of a sparse tensor as they are stored, not coalesced",
    "sparse tensors are not recorded",
    probe=lambda: (torch.Tensor._indices, torch.Tensor._values),
    kind=lambda pair: isinstance(pair, tuple) and all(map(callable, pair)),
)


def sparse_parts(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the "indices" and the "values" of a sparse COO tensor, without coalescing them.

    Raises MovedError where this torch lacks them.
    """
    if _sparse is None:
        raise MovedError(DOORS["torch.Tensor._indices"].said)
    return {"indices": x._indices(), "values": x._values()}


_LOCAL: Final = "_local_tensor"
_shard = later(
    f"torch.distributed.tensor.DTensor.{_LOCAL}",
    "the local shard of a DTensor, without an operation of autograd",
    "shards are read by `to_local`, which takes longer",
    reach=AffectedPrograms.EAGER,
    kind=is_attribute,
)


def has_local_tensor(x: object) -> bool:
    """Return whether `x` is a DTensor.

    Its type tells, not its attributes: a user may set any attribute on a tensor.
    """
    return hasattr(type(x), _LOCAL) or (
        hasattr(type(x), "to_local") and hasattr(type(x), "placements")
    )


def local_tensor(x: Any) -> torch.Tensor:
    """Return the local shard of the DTensor `x`, read without any collective."""
    shard: torch.Tensor | None = getattr(x, _LOCAL, None)
    if not isinstance(shard, torch.Tensor):
        if type(x).__module__.startswith("torch."):  # others may have an attribute of this name
            tell(_shard)
        with torch.no_grad():
            shard = x.to_local()
    return shard
