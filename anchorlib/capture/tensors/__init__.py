"""Tensors in torch: where their values lie, which plain tensors they contain, how to copy them."""

from anchorlib.capture.tensors.autograd_nodes import node_name
from anchorlib.capture.tensors.cuda import CudaCopier
from anchorlib.capture.tensors.device_digests import changed, device_digest
from anchorlib.capture.tensors.inner_tensors import (
    known_sizes,
    placements,
    plain_inside,
    stands_for_a_tensor,
    tensor_parts,
)
from anchorlib.capture.tensors.shared_storages import Storages
from anchorlib.capture.tensors.snapshot import (
    PLAIN,
    QUICK,
    Snapshot,
    TorchArithmetic,
    dtype_name,
    is_for_many,
    is_plain,
    plain,
    quick_place,
    skip_reason,
    undisturbed,
    values_writer,
)

__all__ = [
    "PLAIN",
    "QUICK",
    "CudaCopier",
    "Snapshot",
    "Storages",
    "TorchArithmetic",
    "changed",
    "device_digest",
    "dtype_name",
    "is_for_many",
    "is_plain",
    "known_sizes",
    "node_name",
    "placements",
    "plain",
    "plain_inside",
    "quick_place",
    "skip_reason",
    "stands_for_a_tensor",
    "tensor_parts",
    "undisturbed",
    "values_writer",
]
