"""The plain tensors inside a tensor that is no plain array.

    sparse COO              indices, values            (as stored: not coalesced)
    sparse CSR, BSR         crow_indices, col_indices, values
    sparse CSC, BSC         ccol_indices, row_indices, values
    nested (jagged)         offsets, values
    nested (strided)        sizes, values              (a row of sizes for each tensor inside)
    DTensor                 its local shard, without any collective; `NAME:placements` is recorded
                            whenever it changes: a row (kind, d) for each mesh dimension, kind 0
                            replicated, 1 sharded along dimension d of the tensor, 2 partial; then
                            a row (-1, size) for each dimension of the whole tensor
    functorch (vmap, grad)  the physical tensor inside, with its batch dimensions

The tensors inside sparse and nested ones are recorded as series of their own, with the names in the
table: `NAME:indices`, `NAME:values`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Proxy

from anchorlib.torch_private import (
    has_local_tensor,
    inside_functorch,
    local_tensor,
    sparse_parts,
)

__all__ = ["known_sizes", "placements", "plain_inside", "stands_for_a_tensor", "tensor_parts"]

_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def stands_for_a_tensor(x: object) -> bool:
    """Return whether `x` is a proxy of torch.fx, which stands for a tensor in traced code."""
    return isinstance(x, Proxy)


def plain_inside(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor in which the values of `x` lie.

    That is the local shard of a DTensor, the physical tensor inside a functorch tensor, and `x`
    itself for any other tensor.
    """
    x = inside_functorch(x)
    return local_tensor(x) if has_local_tensor(x) else x  # full_tensor() would communicate


def placements(x: Any) -> tuple[tuple[int, int], ...]:
    """Return the rows of `NAME:placements` for a DTensor; empty for any other tensor.

    The first rows are (kind, dimension), one for each mesh dimension. Kind 0 is replicated, 1
    sharded along `dimension` of the tensor, 2 partial; `dimension` is 0 unless the kind is 1. The
    other rows are (-1, size), one for each dimension of the whole tensor.
    """
    if not has_local_tensor(x):
        return ()
    rows = [
        (1, one.dim) if one.is_shard() else (2 if one.is_partial() else 0, 0)
        for one in x.placements
    ]
    return (*rows, *((-1, size) for size in x.shape))


def known_sizes(x: torch.Tensor) -> tuple[int, ...]:
    """Return the sizes in the shape of `x` that are plain numbers, in order.

    Left out are symbolic sizes, such as the ragged one of a jagged tensor. For a strided nested
    tensor, the number of its inner tensors is returned, and the sizes that are equal in all of
    them.
    """
    if not (x.is_nested and x.layout is torch.strided):
        return tuple(size for size in x.shape if type(size) is int)
    shapes = [tuple(one.shape) for one in x.detach().unbind()]
    alike = [sizes[0] for sizes in zip(*shapes, strict=True) if len(set(sizes)) == 1]
    return (len(shapes), *alike)


def tensor_parts(x: torch.Tensor) -> dict[str, torch.Tensor] | None:
    """Return the plain tensors of which a sparse or nested tensor consists, by name.

    The names, such as "indices", are those in the module's docstring. Return None for any other
    tensor.
    """
    if x.is_nested and x.layout is torch.jagged:
        offsets: torch.Tensor = x.offsets()  # type: ignore[attr-defined]  # NestedTensor's
        return {"offsets": offsets.detach(), "values": x.values().detach()}
    if x.is_nested:
        each = x.detach().unbind()
        flat = [one.reshape(-1) for one in each]
        return {
            "sizes": torch.tensor([one.shape for one in each], dtype=torch.int64, device="cpu"),
            "values": torch.cat(flat) if flat else torch.empty(0, dtype=x.dtype, device=x.device),
        }
    if x.layout is torch.sparse_coo:
        return sparse_parts(x.detach())  # indices() would coalesce
    indices = _COMPRESSED.get(x.layout)
    if indices is None:
        return None
    x = x.detach()
    return {**{name: getattr(x, name)() for name in indices}, "values": x.values()}
