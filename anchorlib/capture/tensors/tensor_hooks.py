"""Hooks on tensors that no handle is needed for: `Tensor.register_hook` without making one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["register_hook"]

# Older versions of torch hand the dict to the tensor.
_NODES_TAKE_HOOKS = not hasattr(torch.Tensor, "_register_hook_dict")


def register_hook(x: torch.Tensor, node: Any, hook: Callable[[torch.Tensor], Any]) -> None:
    """Let `hook` be called with the gradient of `x`, which `node` made, while the graph lives.

    What torch does to register a hook, in the same order, but for the handle (with its weak
    reference), which costs more than the rest. torch calls the values of the dict; its keys need
    only differ.
    """
    if type(x) is not torch.Tensor or not _NODES_TAKE_HOOKS:  # a subclass may have its own way
        x.register_hook(hook)
        return
    hooks: Any = x._backward_hooks  # noqa: SLF001  # the only list there is
    if hooks is None:
        hooks = x._backward_hooks = OrderedDict()  # noqa: SLF001
        # Asked of the type: on a custom Function's node, users keep what they like.
        type(node)._register_hook_dict(node, x)  # noqa: SLF001
    hooks[hook] = hook
