"""torch's own kernels on this machine: what its build computes of the same inputs.

The only place of this room that needs torch, and only when it is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["kernel", "kernel_outputs"]

Array = np.ndarray[Any, Any]


def kernel(name: str, inputs: Sequence[Any], precision: str, **options: Any) -> Array:
    """The first output of `kernel_outputs`."""
    return kernel_outputs(name, inputs, precision, **options)[0]


def kernel_outputs(
    name: str, inputs: Sequence[Any], precision: str, **options: Any
) -> tuple[Array, ...]:
    """What `torch.ops.aten.NAME` gives, as float32 or wider values.

    inputs: arrays of `precision`'s values, and whatever else the operation takes as it stands.
    precision: the element type to compute in; what is wider than float64 is given as float64.
    options: keyword arguments of the operation.
    """
    import torch

    kind = getattr(torch, precision, torch.float64)

    def tensor(one: Any) -> Any:
        if not isinstance(one, np.ndarray):
            return one
        # The order in memory stays: a kernel for a transposed matrix adds up in another order.
        wide = one.astype(np.float64 if kind == torch.float64 else np.float32, order="K")
        return torch.from_numpy(wide).to(kind)

    options = {k: getattr(torch, v) if k.endswith("dtype") else v for k, v in options.items()}
    with torch.no_grad():
        found = getattr(torch.ops.aten, name)(*map(tensor, inputs), **options)
    outputs = found if isinstance(found, tuple) else (found,)
    return tuple(_values(one, torch) for one in outputs if one is not None)


def _values(tensor: Any, torch: Any) -> Array:
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    values: Array = tensor.to(wide).contiguous().numpy()
    return values
