"""What a tensor keeps under private names: its hooks, its version, its memory, its parts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Any, Final, Protocol

import torch

from anchorlib.torch_private.door import DOORS, MovedError, Reach, later, private, tell

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
    "the hooks of a tensor, where we know ours again",
    "gradients of anchored leaves are not recorded",
)
hooks_are_known: Final = _hooks is not None
"""Whether the hooks of a tensor can be looked at."""
NO_LEAF_HOOKS: Final = DOORS[_HOOKS].said
"""Why the gradient of a leaf is not recorded where they cannot."""

_NODE_TAKES: Final = "torch._C._FunctionBase._register_hook_dict"
_node_takes: Any = private(
    _NODE_TAKES,
    "hangs a hook on what a node made, without the handle that costs more than all else",
    "each gradient costs a microsecond more",
)
# In torch before 2.0 the tensor itself took the dict.
_QUICK: Final = hooks_are_known and _node_takes is not None


def hooks_of(x: torch.Tensor) -> dict[Any, Any]:
    """The hooks of a tensor, by key; none where this torch does not show them."""
    return (x._backward_hooks or {}) if hooks_are_known else {}


def hooks_of_new(x: torch.Tensor) -> dict[Any, Any]:
    """The dict of hooks of a leaf, made where there is none yet."""
    if x._backward_hooks is None:
        x._backward_hooks = OrderedDict()
    return x._backward_hooks


def register_hook(x: torch.Tensor, node: Any, hook: Callable[[torch.Tensor], Any]) -> None:
    """Let `hook` be called with the gradient of `x`, which `node` made, while the graph lives.

    What `Tensor.register_hook` does, in the same order, but for the handle (with its weak
    reference), which costs more than the rest. torch calls the values of the dict; its keys need
    only differ.
    """
    if type(x) is not torch.Tensor or not _QUICK:  # a subclass may have its own way
        x.register_hook(hook)
        return
    hooks: Any = x._backward_hooks
    if hooks is None:
        hooks = x._backward_hooks = OrderedDict()
        # Asked of the type: on a custom Function's node, users keep what they like.
        type(node)._register_hook_dict(node, x)
    hooks[hook] = hook


# -- memory

_changes = count(1)
_version: Any = private(
    "torch.Tensor._version",
    "how often the memory of a tensor was written",
    "detached tensors are not followed to what they were detached from",
)


def version(x: torch.Tensor) -> int:
    """How often the memory of `x` was written; never the same where this torch does not tell."""
    if _version is None:
        return next(_changes)
    return 0 if x.is_inference() else x._version


class StorageRef(Protocol):
    """A storage that is not kept alive."""

    cdata: int

    def expired(self) -> bool:
        """Whether it is gone."""


class _Gone:
    """Stands for a weak reference: to nothing."""

    def __init__(self, storage: Any) -> None:
        self.cdata = storage_key(storage)

    def expired(self) -> bool:
        """Always."""
        return True


MemoryRef: Any = private(
    "torch.multiprocessing.reductions.StorageWeakRef",
    "knows a piece of memory again without keeping it alive",
    "detached tensors are not followed to what they were detached from",
    instead=_Gone,
)
_cdata: Any = private(
    "torch.UntypedStorage._cdata",
    "tells a piece of memory from any other that lives",
    "empty tensors that were detached are taken for one another",
)


def storage_key(storage: torch.UntypedStorage) -> int:
    """What tells a storage from any other while it lives."""
    return storage.data_ptr() if _cdata is None else storage._cdata


data_address = private(
    "torch._C._data_address",
    "where a mask lies, without copying one that is a lazy clone",
    "digests of masks are not recorded beside what a value was computed from",
    instead=lambda _x: 0,
)
dlpack_exchange: Any = private(
    "torch.Tensor.__dlpack_c_exchange_api__",
    "lets compiled code read an array without a call of Python",
    "each record costs a microsecond more",
    since="2.10",
)


# -- parts

_sparse: Any = private(
    "torch.Tensor._indices",
    "the indices and values of a sparse tensor as they are, not added up",
    "sparse tensors are not recorded",
    probe=lambda: (torch.Tensor._indices, torch.Tensor._values),
)


def sparse_parts(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Indices and values of a sparse COO tensor. Raises MovedError where torch hides them."""
    if _sparse is None:
        raise MovedError(DOORS["torch.Tensor._indices"].said)
    return {"indices": x._indices(), "values": x._values()}


_LOCAL: Final = "_local_tensor"
_shard = later(
    f"torch.distributed.tensor.DTensor.{_LOCAL}",
    "the shard of a DTensor that lies here, without a step of autograd",
    "shards are asked for by `to_local`, which costs more",
    reach=Reach.EAGER,
)


def has_local_tensor(x: object) -> bool:
    """Whether `x` is a DTensor; its type says so: users keep what they like on a tensor."""
    return hasattr(type(x), _LOCAL) or (
        hasattr(type(x), "to_local") and hasattr(type(x), "placements")
    )


def local_tensor(x: Any) -> torch.Tensor:
    """The shard of a DTensor that lies here; never a collective."""
    found: torch.Tensor | None = getattr(x, _LOCAL, None)
    if found is None:
        if type(x).__module__.startswith("torch."):  # others may call their own so
            tell(_shard)
        with torch.no_grad():
            found = x.to_local()
    return found
