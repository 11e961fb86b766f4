"""`nn.TransformerEncoderLayer` in evaluation: hides our hooks, so that it takes its fast path.

The layer takes its fast path (fused kernels) only if none of its modules has a hook. The slow path
has other kernels, which round differently: hooks would change the values of an evaluation. The
layer's forward looks for hooks on the modules of `self.modules()`. So the layer's method `modules`
is replaced, once in a process: to the layer's own forward, it shows modules without our hooks.

On its fast path a layer calls none of its modules, so only its output is recorded.
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
    """Make `nn.TransformerEncoderLayer` choose its path as if our hooks were not there."""
    layer = nn.TransformerEncoderLayer
    layer.modules = _modules(layer.forward.__code__)  # type: ignore[method-assign]


class _Shown:
    """A module as seen without our forward hooks; every other attribute is the module's own."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        for kind in FORWARD_HOOKS:
            hooks: Mapping[int, Any] = getattr(module, kind, {})
            setattr(self, kind, [one for one in hooks.values() if not isinstance(one, OwnHook)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def _modules(forward: object) -> Any:
    """Return a method `modules` that hides our hooks where the layer's own forward calls it.

    For any other caller it is `nn.Module.modules`; in traced code it always hides our hooks.
    forward: the code object of the layer's own forward.
    """

    def modules(self: nn.Module) -> Iterator[Any]:
        every = nn.Module.modules(self)
        if torch.compiler.is_compiling():  # traced code has no frames to read
            return iter([_Shown(one) for one in every])
        asks = sys._getframe(1).f_code is forward  # noqa: SLF001  # the caller is told by its frame
        return map(_Shown, every) if asks else every

    return modules
