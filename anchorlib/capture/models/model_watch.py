"""`watch`: observe a model without editing it, by hooks on its modules and parameters.

Each watched model has one `ModelWatch`; watching the model again adds choices of tensors to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from torch import nn

from anchorlib.capture.ancestry import Given
from anchorlib.capture.compiled import enter_root, leave_root, watch_compiled
from anchorlib.capture.counting import CallCoordinates, recomputing
from anchorlib.capture.eager import Observer
from anchorlib.capture.headers import StartingValues
from anchorlib.capture.inline import recording
from anchorlib.capture.models.model_state import ModelState
from anchorlib.capture.models.module_hooks import ModuleHook, PassGradient, ShardGradient
from anchorlib.capture.models.module_modes import ModuleModes
from anchorlib.capture.naming import Choice, NamedMembers, named_leaves
from anchorlib.capture.own_hooks import (
    HookHandle,
    add_forward_hook,
    add_forward_pre_hook,
    add_post_accumulate_grad_hook,
    add_tensor_hook,
)
from anchorlib.capture.recording import NameStreams, Stream
from anchorlib.capture.tensors import plain_inside
from anchorlib.errors import UnsupportedError
from anchorlib.modes import Mode

__all__ = ["ModelWatch"]

Wanted = Callable[[str, str, Sequence[str]], bool]

_numbers = count()


class ModelWatch:
    """The hooks on one model, and the choices of tensors that the hooks record.

    Each call of `watch` adds a choice: the tensors that it selects, and their modes.

    parts: the named parts of the model.
    wanted: returns whether the session's selectors select a name and kind; its third argument is
        the kinds that the name can have, empty where they are not known.
    starts: is given digests of the parameters and buffers of which no values are recorded.
    """

    def __init__(
        self, parts: NamedMembers, observer: Observer, wanted: Wanted, starts: StartingValues
    ) -> None:
        self.parts = parts
        self.number = next(_numbers)  # by which compiled code knows this watch
        self.choices: list[Choice] = []
        self._observer = observer
        self._wanted = wanted
        self._plans: dict[str, NameStreams] = {}
        self._hook_handles: list[HookHandle] = []
        self._hooked: set[str] = set()
        self._attached = False
        self._state = ModelState(parts, observer, starts)
        self._modes = ModuleModes(parts.root, parts.modules, observer.recorder.header)
        # The step and phase of the running forward if nothing can be recorded there, else None.
        self._idle_at: tuple[int, str] | None = None

    # -- what is recorded

    def add(self, choice: Choice) -> None:
        """Record the tensors that `choice` selects, in addition to those of earlier choices."""
        self.choices.append(choice)
        if not self._attached:
            return
        for plan in self._plans.values():
            plan.forget()
        for name, module in self.parts.modules.items():
            if module is not self.parts.root and name not in self._hooked and self._any(name):
                self._hooked.add(name)
                hook = ModuleHook(module, self._output_hook(name))
                self._hook_handles.append(add_forward_hook(module, hook, kwargs=True))
        for name, parameter in self.parts.parameters.items():
            if parameter.requires_grad and self._chosen(name, "pass_grad"):
                self._hook_parameter(name, parameter)

    def forget_choices(self) -> None:
        """Record nothing of the model until `add` gives another choice of tensors."""
        self.choices.clear()
        for plan in self._plans.values():
            plan.forget()

    def plan(self, name: str) -> NameStreams:
        """Return the plan of `name`: what is recorded of each of its kinds in each phase."""
        plan = self._plans.get(name)
        if plan is None:
            plan = self._plans[name] = NameStreams(
                name,
                lambda kind, phase: self._make(name, kind, phase),
                lambda: (*self._chosen(name, "value"), *self._chosen(name, "grad")),
            )
            plan.ends = name.partition(":")[0] == self._root_name
        return plan

    def _make(self, name: str, kind: str, phase: str) -> tuple[Stream, ...]:
        modes = [
            (mode, choice.scope.steps)
            for choice in self._choices(name, kind)
            if choice.scope.has_phase(phase)
            for mode in choice.modes
        ]
        return self._observer.recorder.streams(name, kind, modes, phase)

    def _chosen(self, name: str, kind: str) -> tuple[Mode, ...]:
        modes = [choice.modes for choice in self._choices(name, kind)]
        return tuple(dict.fromkeys(mode for some in modes for mode in some))

    def _choices(self, name: str, kind: str) -> list[Choice]:
        kinds = ("value", "pass_grad", "grad") if name in self.parts.parameters else ()
        if not self._wanted(name, kind, kinds):
            return []
        return [choice for choice in self.choices if choice.wants(name, kind)]

    def wants(self, name: str) -> tuple[bool, bool]:
        """Return whether the value, and whether the gradient of `name` is recorded."""
        return bool(self._chosen(name, "value")), bool(self._chosen(name, "grad"))

    def records_nothing(self, step: int, phase: str) -> bool:
        """Return whether every choice leaves out all observations made in `step` and `phase`."""
        return all(choice.records_nothing(step, phase) for choice in self.choices)

    def _any(self, name: str) -> bool:
        """Return whether any output of the module `name` may be recorded, or its gradient.

        The outputs of a module that returns several tensors are called `NAME`, `NAME:1`, `NAME:2`.
        """
        return bool(self._chosen(name, "value") or self._chosen(name, "grad")) or any(
            choice.reaches_below(name) for choice in self.choices
        )

    # -- hooks

    def attach(self) -> None:
        """Hook the forward of the model's root module, which begins passes and phases.

        A ModelWatch that is not attached records nothing.
        """
        root = self.parts.root
        self._attached = True
        before, after = ModuleHook(root, self._before_root), ModuleHook(root, self._after_root)
        self._hook_handles += [
            add_forward_pre_hook(root, before, kwargs=True),
            add_forward_hook(root, after, kwargs=True, always=True),
        ]

    def _before_root(
        self, root: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        name = self.parts.input_name
        if torch.compiler.is_compiling():
            if recording():
                enter_root(self.number, training=root.training)
                self._trace(name, list(args))
                self._trace(name, dict(kwargs))
            return
        if self._observer.closed or recomputing():
            return
        self._observer.catch_up()
        self.enter(training=root.training, gradients=torch.is_grad_enabled())
        now = self._now()
        self._idle_at = now if self.records_nothing(*now) else None
        if self._idle_at is None and self._any(name):
            for leaf, tensor in named_leaves(name, list(args)):
                self._observe(leaf, tensor)
            for leaf, tensor in named_leaves(name, dict(kwargs)):
                self._observe(leaf, tensor)

    def _after_root(
        self, root: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if torch.compiler.is_compiling():
            if recording():
                self._trace(self._root_name, output, root=True)
                leave_root(self.number)
            return
        if self._observer.closed:
            return
        # If the forward raised an exception, `output` is None.
        self._see(self._root_name, output, (root, args, kwargs))
        if not recomputing():
            self._idle_at = None
            self.leave()

    def enter(self, *, training: bool, gradients: bool) -> None:
        """Note that the model's forward begins, so that its pass and phase are known.

        training: whether the model is in training mode. gradients: whether gradients are enabled.
        """
        root = self.parts.root
        self._observer.forwards.enter(root, training=training, gradients=gradients)

    def leave(self) -> None:
        """Note that the model's forward has ended, so that its phase ends."""
        self._observer.clock.leave_root()

    def _trace(self, name: str, value: Any, *, root: bool = False) -> None:
        """Have compiled code observe the tensors in an input or output, while dynamo traces it.

        name: the name of the input or output. value: what the module was given or returned. root:
            whether it is the whole model's output.
        """
        for leaf, tensor in named_leaves(name, value):
            watch_compiled(tensor, leaf, self.number, root=root)

    @property
    def _root_name(self) -> str:
        return next(reversed(self.parts.modules))

    def _output_hook(self, name: str) -> Callable[..., None]:
        def hook(
            module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
        ) -> None:
            if torch.compiler.is_compiling():
                if recording():
                    self._trace(name, output)
            elif (
                self._idle_at is None or self._idle_at != self._now()
            ) and not self._observer.closed:
                self._see(name, output, (module, args, kwargs))

        return hook

    def _now(self) -> tuple[int, str]:
        clock = self._observer.clock
        return clock.step, clock.phase

    def _see(self, name: str, output: Any, given: Given) -> None:
        """Observe the tensors in the output of the module `name`.

        output: what the module's forward returned. given: the module, with the positional and
            keyword arguments of the call.
        """
        if type(output) is torch.Tensor:
            self._observe(name, output, given)
            return
        for leaf, tensor in named_leaves(name, output):
            self._observe(leaf, tensor, given)

    def _observe(self, name: str, tensor: torch.Tensor, given: Given | None = None) -> None:
        plan = self.plan(name)
        try:
            self._observer.value(plan, tensor, given=given)
        except UnsupportedError as fault:  # unlike the user's own anchors, a hook must not raise it
            self._observer.fault(name, "value", fault)

    def _hook_parameter(self, name: str, parameter: nn.Parameter) -> None:
        key = f"{name}@pass_grad"
        if key not in self._hooked:
            self._hooked.add(key)
            plan = self.plan(name)
            if plain_inside(parameter) is parameter:
                handle = add_tensor_hook(parameter, PassGradient(self._observer, plan))
            else:  # tensor hooks on sharded parameters never run
                handle = add_post_accumulate_grad_hook(
                    parameter, ShardGradient(self._observer, plan)
                )
            self._hook_handles.append(handle)

    def on_pass(self, at: CallCoordinates) -> None:
        """Record parameters and buffers as the pass at `at` begins, and note layers in eval mode.

        Each selected parameter or buffer is recorded once in a step and phase, and again in a later
        pass of the step if its bits changed.
        """
        if self._observer.closed or self.records_nothing(at.step, at.phase):
            return
        self._modes.look(at.step)
        self._state.observe(at, self.plan)

    def close(self) -> None:
        """Remove the hooks from the model."""
        for handle in self._hook_handles:
            handle.remove()
        self._hook_handles.clear()
