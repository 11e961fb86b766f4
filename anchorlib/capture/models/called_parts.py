"""Parts of a watched model that a program calls directly, as Lightning's `training_step` does.

In such a program the model's own forward does not run, and so cannot show that a pass begins and
whether it trains or evaluates. Instead, the outermost part that is called counts as the whole model
during its call: the part's `training` attribute tells training and evaluation apart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from anchorlib.capture.counting import recomputing
from anchorlib.capture.eager import Observer
from anchorlib.capture.models.module_hooks import ModuleHook
from anchorlib.capture.naming import has_forward
from anchorlib.capture.own_hooks import HookHandle, add_forward_hook, add_forward_pre_hook

__all__ = ["hook_called_parts"]


def hook_called_parts(model: nn.Module, observer: Observer) -> Callable[[], None]:
    """Hook the submodules of `model` that a program may call without the model's own forward.

    Returns a function that removes the hooks.
    """
    handles: list[HookHandle] = []
    for module in _callable(model):
        part = _CalledPart(observer)
        before, after = ModuleHook(module, part.begins), ModuleHook(module, part.has_ended)
        handles.append(add_forward_pre_hook(module, before))
        handles.append(add_forward_hook(module, after, always=True))

    def undo() -> None:
        for one in handles:
            one.remove()

    return undo


def _callable(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules below `model` that have a forward.

    A ModuleList has no forward: the modules in it are yielded instead.
    """
    for child in model.children():
        if has_forward(child):
            yield child
        else:
            yield from _callable(child)


class _CalledPart:
    """The hooks of one submodule of a model, and the threads that call it directly.

    For each thread the depth of its calls is counted, since the submodule may call itself.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._depth: dict[int, int] = {}

    def begins(self, module: nn.Module, _args: Any) -> None:
        """Note that the forward of this submodule begins.

        This forward counts as that of a watched model if none runs in this thread already.
        module: the submodule.
        """
        observer = self._observer
        if torch.compiler.is_compiling() or observer.closed or recomputing():
            return
        thread = threading.get_ident()
        if thread in self._depth:
            self._depth[thread] += 1
        elif observer.clock.phases.forward is None:
            self._depth[thread] = 1
            observer.catch_up()
            gradients = torch.is_grad_enabled()
            observer.forwards.enter(module, training=module.training, gradients=gradients)

    def has_ended(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        """Note that the forward of this submodule has ended, perhaps by an exception."""
        if torch.compiler.is_compiling():
            return
        thread = threading.get_ident()
        if thread not in self._depth or recomputing():
            return
        self._depth[thread] -= 1
        if not self._depth[thread]:
            del self._depth[thread]
            self._observer.clock.leave_root()
