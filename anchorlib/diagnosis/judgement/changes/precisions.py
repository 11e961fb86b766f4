"""Settings by which hardware rounds the operands of float32 products, as TF32: a cause.

    float32_matmul_precision highest | high

Which settings count depends on whether a product or a convolution made the record.
"""

from __future__ import annotations

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.sizes import CONVOLUTION, MATMUL
from anchorlib.names import escape

__all__ = ["precision_otherwise"]

PREFIX = "torch."
PRODUCTS = (
    "float32_matmul_precision",
    "cuda.matmul.fp32_precision",
    "mkldnn.matmul.fp32_precision",
)
CONVOLUTIONS = ("cudnn.allow_tf32", "cudnn.conv.fp32_precision")


def precision_otherwise(frontier: Frontier, row: int) -> list[str]:
    """Return a clause on the first setting of a row's products that differs between the headers.

    [] for a row that no product and no convolution makes, and where all settings are equal.
    row: a row of A.
    """
    alignment = frontier.alignment
    ops = frontier.ancestry(row).ops
    rank = alignment.a.tensors[alignment.a.tensor[row]].rank
    a, b = (table.header.get(rank, {}) for table in (alignment.a, alignment.b))
    asked = [
        *(PRODUCTS if any(map(MATMUL.search, ops)) else ()),
        *(CONVOLUTIONS if any(map(CONVOLUTION.search, ops)) else ()),
    ]
    told = [
        f"{name} {a[PREFIX + name]} | {b[PREFIX + name]}"
        for name in asked
        if a.get(PREFIX + name) != b.get(PREFIX + name) and {PREFIX + name} <= a.keys() & b.keys()
    ]
    return [escape(clause) for clause in told[:1]]
