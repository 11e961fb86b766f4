"""`torch.jit.script` of a watched model, or of its copy: it compiles hooks, and ours are no script.

torch has no hook for it, so what makes a script of a module is wrapped, once in a process, and sees
none of ours.
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
    """From now on `torch.jit.script` leaves our hooks out of what it compiles."""
    wrap_scripting(_hookless)


def _hookless(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_script_module(nn_module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with _hooks_taken_off(nn_module):
            return original(nn_module, *args, **kwargs)

    return create_script_module


@contextmanager
def _hooks_taken_off(model: nn.Module) -> Iterator[None]:
    """None of our hooks is on a module of `model`; all are back in their order afterwards."""
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
