"""Hides our hooks, which are no TorchScript, from `torch.jit.script` of a watched model or a copy.

`torch.jit.script` compiles the hooks of a module too, and would fail on ours. torch offers no way
to prevent that, so torch's function that scripts a module is wrapped, once in a process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from anchorlib.capture.own_hooks import OwnHook
from anchorlib.torch_private import FORWARD_HOOKS, wrap_scripting

__all__ = ["script_without_hooks"]


@functools.cache
def script_without_hooks() -> None:
    """Make `torch.jit.script` ignore our hooks from now on."""
    wrap_scripting(_hookless)


def _hookless(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_script_module(nn_module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with _hooks_taken_off(nn_module):
            return original(nn_module, *args, **kwargs)

    return create_script_module


@contextmanager
def _hooks_taken_off(model: nn.Module) -> Iterator[None]:
    """Return a context manager in which no module of `model` has our hooks.

    At its end, our hooks are put back, at their old places among the other hooks.
    """
    taken = []
    for module in model.modules():
        for hooks in (vars(module).get(kind) or {} for kind in FORWARD_HOOKS):
            own = [number for number, hook in hooks.items() if isinstance(hook, OwnHook)]
            if own:
                taken.append((hooks, list(hooks.items())))
                for number in own:
                    del hooks[number]
    try:
        yield
    finally:
        for hooks, before in taken:
            hooks.clear()
            hooks.update(before)
