"""Observes an optimizer's step: the gradients it uses, updated values, changes, state.

torch calls global hooks around every optimizer's step, so that steps are counted even for
optimizers that were not given to `watch`. Wrappers that step through an inner optimizer (SAM's
`base_optimizer`, Accelerate's `optimizer`) are unwrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

import torch
from torch.optim.optimizer import Optimizer

from anchorlib.capture.counting import CallCoordinates
from anchorlib.capture.dynamo_marks import never_traced
from anchorlib.capture.eager import Observer
from anchorlib.capture.naming import state_values, tensor_of, why_no_tensor
from anchorlib.capture.optimizers.amp import ScalerHooks, fused_scaling
from anchorlib.capture.optimizers.nested_steps import is_nested_step
from anchorlib.capture.own_hooks import OwnHook, add_global_step_post_hook, add_step_pre_hook
from anchorlib.capture.recording import UNSCALED, NameStreams, ScaleAndFlags, Stream
from anchorlib.errors import OptionError
from anchorlib.record import Flag

__all__ = ["OptimizerWatch", "StepHook", "unwrap_all"]

_WRAPPED = ("base_optimizer", "optimizer")


def unwrap_all(optimizers: object) -> list[Optimizer]:
    """Return the given optimizers, each without its wrappers.

    optimizers: an optimizer, a list or tuple of them, or None (no optimizers).
    Raises OptionError for any other object.
    """
    if optimizers is None:
        return []
    several = optimizers if isinstance(optimizers, list | tuple) else [optimizers]
    return [_unwrap(one) for one in several]


def _unwrap(optimizer: object) -> Optimizer:
    """Return the optimizer inside all wrappers of `optimizer`: its step updates the parameters.

    Raises OptionError where no torch.optim.Optimizer is inside.
    """
    inner: object = optimizer
    for _ in range(8):  # bounded, so that wrappers in a cycle do not hang the training
        wrapped = next((getattr(inner, a) for a in _WRAPPED if _is_optimizer(inner, a)), None)
        if wrapped is None:
            break
        inner = wrapped
    if not isinstance(inner, Optimizer):
        raise OptionError(
            f"optimizer= takes a torch.optim.Optimizer or a wrapper of one, not "
            f"{type(optimizer).__name__}"
        )
    return inner


def _is_optimizer(holder: object, attribute: str) -> bool:
    inner = getattr(holder, attribute, None)
    return inner is not None and inner is not holder and hasattr(inner, "step")


class OptimizerWatch:
    """Records the updates that one optimizer makes to the parameters of one model.

    of: a weak reference to the optimizer. names: each parameter's position in the model and its
        name, by the parameter's id. plan: returns what is recorded of a name. records_nothing:
        returns whether nothing is recorded in a given step and phase.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        names: Mapping[int, tuple[int, str]],
        observer: Observer,
        plan: Callable[[str], NameStreams],
        records_nothing: Callable[[int, str], bool],
    ) -> None:
        self.of = ref(optimizer)
        self._records_nothing = records_nothing
        held = {id(p): p for group in optimizer.param_groups for p in group["params"]}
        ours = sorted((names[number], number) for number in held if number in names)
        self.parameters = {name: held[number] for (_, name), number in ours}
        self._observer = observer
        self._plan = plan
        self._values: dict[str, torch.Tensor] = {}
        self._gradients_due = False
        self._scaling = UNSCALED
        self._ended = (-1, 0)  # the last step, and how often the optimizer has stepped in it
        # A hook of this optimizer, not a global one, runs after the user's that change gradients.
        self._hook_handle = add_step_pre_hook(optimizer, _BeforeStep(self))

    def records(self, plan: Callable[[str], NameStreams]) -> bool:
        """Return whether this watch belongs to the watched model whose method `plan` is given."""
        return self._plan == plan

    def begins(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Note that the optimizer's step begins, and record the gradients that it will use.

        With a closure, which computes gradients inside the step, they are recorded after its first
        run.
        args, kwargs: the arguments of the step.
        Returns the arguments to call the step with instead, in which the closure is wrapped; None
        without a closure, or where nothing is recorded.
        """
        if self._observer.closed or self._rests_now():
            return None
        self._observer.guarded(self._before_step)
        closure = _Closure.of(args, kwargs)
        if closure is None:
            self._observer.guarded(self._gradients)
            return None
        # The closure computes the gradients, inside the step.
        closure.then(lambda: self._observer.guarded(self._gradients))
        return closure.args, closure.kwargs

    def _rests_now(self) -> bool:
        clock = self._observer.clock
        return self._records_nothing(clock.step, clock.phase)

    def _before_step(self) -> None:
        self._gradients_due = True
        self._values.clear()
        at = self._at()
        for name, parameter in self.parameters.items():
            if _due(self._plan(name).streams("delta", at.phase), at.step):
                self._values[name] = parameter.detach().clone()

    def _gradients(self) -> None:
        """Record the gradients that the optimizer uses, at the first call in each step.

        Further calls in one step do nothing.
        """
        if not self._gradients_due:
            return
        self._gradients_due = False
        optimizer = self.of()
        self._scaling = UNSCALED if optimizer is None else fused_scaling(optimizer)
        self._record_gradients(self._scaling)

    def _record_gradients(self, scaling: ScaleAndFlags) -> None:
        at = self._at()
        for name, parameter in self.parameters.items():
            gradient, plan = parameter.grad, self._plan(name)
            if gradient is None or not _due(plan.streams("grad", at.phase), at.step):
                continue
            if isinstance(
                scaling.scale, torch.Tensor
            ):  # a fused optimizer unscales inside its step
                with torch.no_grad():
                    gradient = gradient / scaling.scale.to(gradient.dtype)
            self._observer.kind(plan, "grad", at, gradient, scaling)

    def skipped(self) -> None:
        """Record the gradients of a step that GradScaler skipped because they are not finite."""
        self._record_gradients(ScaleAndFlags(flags=Flag.STEP_SKIPPED))
        self._count()

    def after(self) -> None:
        """Record updated parameters, their changes and optimizer state after a step."""
        if not self._rests_now():
            self._gradients()
            self._record_updates(self._at())
        self._count()

    def _record_updates(self, at: CallCoordinates) -> None:
        for name, parameter in self.parameters.items():
            plan = self._plan(name)
            self._observer.kind(plan, "updated", at, parameter, self._scaling)
            before = self._values.pop(name, None)
            if before is not None:
                with torch.no_grad():
                    change = parameter.detach() - before
                self._observer.kind(plan, "delta", at, change, self._scaling)
            self._record_state(plan, at, parameter)

    def _record_state(
        self, plan: NameStreams, at: CallCoordinates, parameter: torch.nn.Parameter
    ) -> None:
        optimizer = self.of()
        if optimizer is None:
            return
        for kind, value in state_values(optimizer.state.get(parameter, {})):
            if not plan.streams(kind, at.phase):
                continue
            tensor = tensor_of(value)
            if tensor is None:
                self._observer.recorder.skip(plan.name, kind, why_no_tensor(value), at.step)
            else:
                self._observer.kind(plan, kind, at, tensor)

    def _at(self) -> CallCoordinates:
        """Return the coordinates of records of the optimizer's step.

        Step and phase are those of this moment, and the pass is 0. The call is the number of steps
        that the optimizer has made before in the session's open step.
        """
        now = self._observer.clock.now()
        step, times = self._ended
        return CallCoordinates(now.step, 0, times if step == now.step else 0, now.phase)

    def _count(self) -> None:
        at = self._at()
        self._ended = (at.step, at.call + 1)

    def close(self) -> None:
        """Remove the hook from the optimizer."""
        self._hook_handle.remove()


class _BeforeStep(OwnHook):
    """A hook that is called before the steps of one optimizer.

    It does nothing for a copy of the optimizer, which has the hooks of the original.
    """

    __slots__ = ("_watch",)

    def __init__(self, watch: OptimizerWatch) -> None:
        self._watch = watch

    @never_traced
    def __call__(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._watch.of() is not optimizer or is_nested_step(optimizer):
            return None
        return self._watch.begins(args, kwargs)


def _due(streams: tuple[Stream, ...], step: int) -> bool:
    return any(not stream.idle(step) for stream in streams)


class StepHook:
    """Hooks the end of every optimizer's step in this process, for one session.

    When a step ends, the watches of the optimizer record its updates, and the session's clock
    counts it. Methods of GradScaler are wrapped too, to see the steps that it skips.

    watches: returns the watches of an optimizer. stepped: called after each step, with the
        optimizer and the number of the session's open step.
    """

    def __init__(
        self,
        observer: Observer,
        watches: Callable[[object], list[OptimizerWatch]],
        stepped: Callable[[Optimizer, int], None] = lambda _optimizer, _step: None,
    ) -> None:
        self._observer = observer
        self._watches = watches
        self._stepped = stepped
        self._hook_handle = add_global_step_post_hook(self._after)
        self._scaler = ScalerHooks(observer, self._skipped)

    @never_traced
    def _after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._observer.closed or is_nested_step(optimizer):
            return
        self._scaler.stepping(optimizer)
        for watch in self._watches(optimizer):
            self._observer.guarded(watch.after)
        step = self._observer.clock.step
        self._observer.guarded(lambda: self._stepped(optimizer, step))
        self._observer.guarded(lambda: self._observer.clock.optimizer_stepped(optimizer))

    def _skipped(self, optimizer: Optimizer) -> None:
        for watch in self._watches(optimizer):
            watch.skipped()
        self._observer.clock.optimizer_stepped(optimizer)

    def close(self) -> None:
        """Remove the hook, and put GradScaler's methods back."""
        self._hook_handle.remove()
        self._scaler.close()


class _Closure:
    """The closure in the arguments of an optimizer's step, which `then` wraps.

    args, kwargs: the arguments of the step, in which `then` replaces the closure.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], closure: Any) -> None:
        self.args = args
        self.kwargs = kwargs
        self._closure = closure

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Closure | None:
        """Return the closure among the arguments of a step; None without one.

        args, kwargs: the arguments of `step(self, closure)`, `self` included.
        """
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        return cls(args, kwargs, closure) if callable(closure) else None

    def then(self, action: Callable[[], object]) -> None:
        """Wrap the closure, so that `action` is called after each run of the closure."""
        closure = self._closure

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = closure(*args, **kwargs)
            action()
            return result

        if "closure" in self.kwargs:
            self.kwargs = {**self.kwargs, "closure": wrapped}
        else:
            self.args = (self.args[0], wrapped, *self.args[2:])
