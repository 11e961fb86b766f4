"""Operators that compiled code keeps: neither removed as dead code, nor fused, nor captured.

They are plain custom operators, which nothing orders: the compiler may run them in another order
than the program's (`executions` corrects their coordinates). torch has two ways to order operators,
and neither can be used: operators with an effect token do not survive activation checkpointing, and
an argument that all of them mutate would be saved for backward and changed before backward runs.
The operators' names have a version, since compiled code cached on disk calls them by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.node import has_side_effect
from torch.library import Library, register_fake, register_vmap

from anchorlib.torch_private import dispatch_modes, function_modes, is_wrapped, wrap_operator_call

__all__ = ["define"]

_VERSION = 1
_library = Library("anchorlib", "FRAGMENT")
_TAGS = tuple(
    tag
    for name in (
        "cudagraph_unsafe",  # Inductor runs them between CUDA graphs, not inside
        "flexible_layout",  # the compiler chooses strides as it would without us
    )
    if (tag := getattr(torch.Tag, name, None))
    is not None  # torch before 2.13 may lack a tag: it compiles no anchors
)


def define(
    name: str, signature: str, kernel: Callable[..., Any], shape: tuple[int, ...] | None = None
) -> Any:
    """Define and return an operator of torch in the namespace "anchorlib", which runs `kernel`.

    name: the operator's name, to which the version is appended. signature: its arguments and
        result in torch's schema language, such as "(Tensor x, str name) -> Tensor". shape: the
        shape of the int64 CPU tensor that `kernel` returns; None where `kernel` returns nothing.
    """
    full = f"{name}_{_VERSION}"
    _library.define(f"{full}{signature}", tags=_TAGS)
    _library.impl(full, kernel, "CompositeExplicitAutograd")
    operator = getattr(torch.ops.anchorlib, full).default

    def fake(*_arguments: Any) -> torch.Tensor | None:
        return None if shape is None else torch.empty(shape, dtype=torch.int64, device="cpu")

    def batched(_info: Any, _dims: Any, *arguments: Any) -> tuple[Any, None]:
        # A tensor of vmap is observed whole, with its batch dimensions; the result has none.
        return operator(*arguments), None

    _enter_directly(operator, kernel)
    register_fake(f"anchorlib::{full}", fake, lib=_library)
    register_vmap(f"anchorlib::{full}", batched, lib=_library)
    has_side_effect(operator)
    return operator


def _enter_directly(operator: Any, kernel: Callable[..., Any]) -> None:
    """Have Python calls of `operator` with an ordinary tensor call `kernel` without the dispatcher.

    The dispatcher would convert the arguments to C++ and back, only to call the same kernel. Calls
    under a dispatch or function mode, under a functorch transform, and from C++ still go through
    the dispatcher, and so do calls whose first argument is no plain tensor.
    """

    def entry(dispatched: Callable[..., Any]) -> Callable[..., Any]:
        def enter(*arguments: Any) -> Any:
            first = arguments[0]
            if (
                type(first) is torch.Tensor
                and not (dispatch_modes() or function_modes())
                and not is_wrapped(first)
            ):
                return kernel(*arguments)
            return dispatched(*arguments)

        return enter

    wrap_operator_call(operator, entry)
