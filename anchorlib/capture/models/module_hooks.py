"""The hooks that `watch` puts on modules and parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch import nn

from anchorlib.capture.dynamo_marks import never_traced, skip_frames
from anchorlib.capture.eager import Observer
from anchorlib.capture.own_hooks import OwnHook
from anchorlib.capture.recording import NameStreams

__all__ = ["ModuleHook", "PassGradient", "ShardGradient"]


class ModuleHook(OwnHook):
    """A hook that calls a function, but only for the module that it was made for.

    It does nothing for a shallow copy or a replica of the module, which shares the module's hooks.

    act: the function, which gets what torch gives the hook: the module and further arguments.
    """

    __slots__ = ("_act", "_module")

    def __init__(self, module: nn.Module, act: Callable[..., None]) -> None:
        self._module = ref(module)
        self._act = act

    @skip_frames
    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        """Call the hook's function, with these arguments, if `module` is not a copy."""
        if self._module() is module:
            self._act(module, *arguments)


class PassGradient:
    """A parameter's tensor hook, which records the gradient that each backward adds."""

    __slots__ = ("_observer", "_plan")
    __torch_unserializable__ = True  # lets torch save a watched parameter without a warning

    def __init__(self, observer: Observer, plan: NameStreams) -> None:
        self._observer = observer
        self._plan = plan

    @never_traced
    def __call__(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Record `gradient` with the coordinates of the pass that is open now.

        Returns None, or under `anchorlib.graft` the other run's gradient, to be used instead.
        """
        return self._observer.pass_gradient(self._plan, gradient)


class ShardGradient:
    """A sharded parameter's hook, which runs after the reduced gradient was added to its `grad`.

    Reduced means summed or averaged over the ranks, as each rank gets its shard.
    """

    __slots__ = ("_last", "_observer", "_plan")

    def __init__(self, observer: Observer, plan: NameStreams) -> None:
        self._observer = observer
        self._plan = plan
        self._last: Callable[[], torch.Tensor | None] = lambda: None

    @never_traced
    def __call__(self, parameter: torch.Tensor) -> None:
        """Record `parameter.grad` if a single pass made it.

        A `grad` to which several passes have added is counted as skipped instead.
        """
        gradient = parameter.grad
        if gradient is None:
            return
        if self._last() is gradient:
            step = self._observer.clock.step
            reason = "a sharded parameter's gradient is a sum over passes"
            self._observer.recorder.skip(self._plan.name, "pass_grad", reason, step)
            self._observer.clock.gradient()
            return
        self._last = ref(gradient)
        self._observer.pass_gradient(self._plan, gradient)
