"""Operators that compiled code keeps: neither removed as dead code, nor fused, nor captured.

They are plain custom operators. An effect token would not survive activation checkpointing, and a
mutated argument would be saved for backward and change before it; so nothing orders them, and the
compiler may run them in another order than the program's (`executions` puts that right). A
version stands in their names, since compiled code that is cached on disk calls them by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.node import has_side_effect
from torch.library import Library, register_fake, register_vmap

__all__ = ["define"]

_VERSION = 1
_dispatch_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001  # no public names
_function_modes = torch._C._len_torch_function_stack  # noqa: SLF001
_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # noqa: SLF001
_library = Library("anchorlib", "FRAGMENT")
_TAGS = (
    torch.Tag.cudagraph_unsafe,  # inductor runs them between CUDA graphs, not inside
    torch.Tag.flexible_layout,  # whatever strides the compiler would have chosen without us
)


def define(
    name: str, signature: str, kernel: Callable[..., Any], shape: tuple[int, ...] | None = None
) -> Any:
    """The operator `anchorlib::name`, which runs `kernel`.

    signature: as torch writes it, after the name. shape: of the int64 CPU tensor that `kernel`
    returns; None where it returns nothing.
    """
    full = f"{name}_{_VERSION}"
    _library.define(f"{full}{signature}", tags=_TAGS)
    _library.impl(full, kernel, "CompositeExplicitAutograd")
    operator = getattr(torch.ops.anchorlib, full).default

    def fake(*_arguments: Any) -> torch.Tensor | None:
        return None if shape is None else torch.empty(shape, dtype=torch.int64, device="cpu")

    def batched(_info: Any, _dims: Any, *arguments: Any) -> tuple[Any, None]:
        # What vmap made is observed as it is, with its batch dimensions; nothing comes back.
        return operator(*arguments), None

    _enter_directly(operator, kernel)
    register_fake(f"anchorlib::{full}", fake, lib=_library)
    register_vmap(f"anchorlib::{full}", batched, lib=_library)
    has_side_effect(operator)
    return operator


def _enter_directly(operator: Any, kernel: Callable[..., Any]) -> None:
    """Let Python code that calls `operator` with an ordinary tensor enter `kernel` itself.

    The dispatcher would take the arguments apart and put them together again, only to do the same.
    It is still needed by whatever traces (modes), batches (functorch) or is written in C++.
    """
    dispatched = operator._op  # noqa: SLF001  # what `operator(...)` calls

    def enter(*arguments: Any) -> Any:
        first = arguments[0]
        if (
            type(first) is torch.Tensor
            and not (_dispatch_modes() or _function_modes())
            and not _wrapped(first)
        ):
            return kernel(*arguments)
        return dispatched(*arguments)

    operator._op = enter  # noqa: SLF001
