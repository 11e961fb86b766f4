"""`nn.TransformerEncoderLayer` in evaluation: it counts hooks before it takes its fast path.

With a hook on any of its modules it computes by other kernels, which round otherwise: an observed
evaluation would not be the unobserved one. It looks at what `self.modules()` yields, so where its
own forward asks for them, they are shown to it without our hooks, once in a process for all layers.
A layer on its fast path calls none of its modules: it has an output, and nothing inside.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from anchorlib.capture.own_hooks import OwnHook
from anchorlib.torch_private import FORWARD_HOOKS

__all__ = ["show_encoder_layers_no_hooks"]


@functools.cache
def show_encoder_layers_no_hooks() -> None:
    """From now on `nn.TransformerEncoderLayer` decides on its path as if no hook of ours were."""
    layer = nn.TransformerEncoderLayer
    layer.modules = _modules(layer.forward.__code__)  # type: ignore[method-assign]


class _Shown:
    """A module whose forward hooks are those that are not ours; all else is as it is."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        for kind in FORWARD_HOOKS:
            hooks: Mapping[int, Any] = getattr(module, kind, {})
            setattr(self, kind, [one for one in hooks.values() if not isinstance(one, OwnHook)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def _modules(forward: object) -> Any:
    """`modules` of the class whose own forward has this code."""

    def modules(self: nn.Module) -> Iterator[Any]:
        found = nn.Module.modules(self)
        if torch.compiler.is_compiling():  # there are no frames in what is traced
            return iter([_Shown(one) for one in found])
        asks = sys._getframe(1).f_code is forward  # noqa: SLF001  # who asks is all there is to know
        return map(_Shown, found) if asks else found

    return modules
