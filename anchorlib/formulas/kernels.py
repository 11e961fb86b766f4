"""Runs torch's own kernels on recorded inputs; results depend on the torch build and the machine.

This is the only module of `formulas` that needs torch, and its functions import torch when called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["kernel", "kernel_gradients", "kernel_outputs"]

Array = np.ndarray[Any, Any]


def kernel(name: str, inputs: Sequence[Any], precision: str, **options: Any) -> Array:
    """Return the first output of `torch.ops.aten.NAME`, as float32 or float64 values.

    The arguments are those of `kernel_outputs`.
    """
    return kernel_outputs(name, inputs, precision, **options)[0]


def kernel_outputs(
    name: str, inputs: Sequence[Any], precision: str, **options: Any
) -> tuple[Array, ...]:
    """Return the outputs of `torch.ops.aten.NAME` as float32 or float64 values.

    An output that is None has no entry in the tuple: the next output takes its place.

    name: NAME, the operation.
    inputs: the operation's positional arguments. Arrays become tensors of `precision`; all other
    arguments are passed unchanged.
    precision: the element type to compute in; `EXACT` is computed in float64.
    options: keyword arguments of the operation; a dtype is given by its name, such as "float32".
    """
    import torch

    options = {k: getattr(torch, v) if k.endswith("dtype") else v for k, v in options.items()}
    with torch.no_grad():
        result = getattr(torch.ops.aten, name)(*_tensors(inputs, precision), **options)
    outputs = result if isinstance(result, tuple) else (result,)
    return tuple(_values(one, torch) for one in outputs if one is not None)


def kernel_gradients(
    name: str, inputs: Sequence[Any], g: Array, precision: str, leaves: int, **options: Any
) -> list[Array]:
    """Return the gradients of the first inputs of `torch.ops.aten.NAME`, as autograd computes them.

    g: the gradient of the operation's first output.
    leaves: how many gradients are returned: those of inputs 0 to leaves - 1, which are arrays.
    The other arguments are those of `kernel_outputs`.
    """
    import torch

    given, (arrived,) = _tensors(inputs, precision), _tensors([g], precision)
    with torch.inference_mode(False), torch.enable_grad():
        for one in given[:leaves]:
            one.requires_grad_()
        result = getattr(torch.ops.aten, name)(*given, **options)
        output = result[0] if isinstance(result, tuple) else result
        gradients = torch.autograd.grad(output, given[:leaves], arrived)
    return [_values(one, torch) for one in gradients]


def _tensors(inputs: Sequence[Any], precision: str) -> list[Any]:
    """Return the inputs with each array made a tensor of `precision`; others stay as they are."""
    import torch

    kind = getattr(torch, precision, torch.float64)

    def tensor(one: Any) -> Any:
        if not isinstance(one, np.ndarray):
            return one
        # order="K" keeps strides: a kernel for a transposed matrix adds up in another order.
        wide = one.astype(np.float64 if kind == torch.float64 else np.float32, order="K")
        return torch.from_numpy(wide).to(kind)

    return [tensor(one) for one in inputs]


def _values(tensor: Any, torch: Any) -> Array:
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    values: Array = tensor.to(wide).contiguous().numpy()
    return values
