"""What happens at an anchor: the value is observed at once, the gradient when backward reaches it.

Anchors, watched modules and optimizers share one observer: it has the clock and the recorder, and
lets no exception of ours out into a user's forward, backward or optimizer step. A plan, here, is
what is recorded of one name. It has streams for each kind and phase: a stream records in one mode.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from anchorlib.capture.ancestry import Given, LineageTracker
from anchorlib.capture.counting import (
    CallCoordinates,
    Clock,
    Repetition,
    UnfollowedCalls,
    repetition,
)
from anchorlib.capture.dynamo_marks import never_traced
from anchorlib.capture.eager.call_sites import COMPILED_NODE
from anchorlib.capture.eager.forwards import Forwards
from anchorlib.capture.eager.grafting import Graft
from anchorlib.capture.own_hooks import HookHandle, add_tensor_hook
from anchorlib.capture.recording import (
    REACHED,
    UNSCALED,
    NameStreams,
    Recorder,
    ScaleAndFlags,
    Stream,
)
from anchorlib.errors import UnsupportedError
from anchorlib.names import escape, join
from anchorlib.scope import NO_GRAD
from anchorlib.torch_private import (
    NO_LEAF_HOOKS,
    graph_task,
    hooks_are_known,
    hooks_of,
    register_hook,
)

__all__ = ["GradientHook", "Observer"]

_log = logging.getLogger("anchorlib")
_grad_enabled = torch.is_grad_enabled
_HANDLES = 256  # new hooks on leaves, at least, before hooks of freed leaves are dropped
_UNKNOWN = "a gradient whose forward is not known"


def _all_idle(streams: tuple[Stream, ...], step: int) -> bool:
    return all(stream.idle(step) for stream in streams)


class GradientHook:
    """A tensor hook that observes the gradient of the tensor of one forward call.

    plan: what is recorded of the tensor; None: the hook only notes that a gradient came. at: the
        coordinates of the forward call.
    """

    __slots__ = ("_observer", "_plan", "at")

    # Lets torch save an anchored leaf, or send it to other processes, without a warning.
    __torch_unserializable__ = True

    def __init__(self, observer: Observer, plan: NameStreams | None, at: CallCoordinates) -> None:
        self._observer = observer
        self._plan = plan
        self.at = at

    def serves(self, observer: Observer, plan: NameStreams | None) -> bool:
        """Return whether this hook was made for the same observer and the same plan."""
        return self._observer is observer and self._plan is plan

    @never_traced
    def __call__(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Record `gradient`; without a plan, only note that this pass has a gradient.

        Returns None, which leaves the gradient as it is, or under `anchorlib.graft` the other run's
        gradient, to be used instead.
        """
        return self._observer.gradient(self._plan, self.at, gradient)


class LeafHook(GradientHook):
    """A gradient hook on a leaf, which stays on the leaf from pass to pass.

    A later pass may use the leaf without anchoring it again.
    """

    __slots__ = ()

    @never_traced
    def __call__(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Record `gradient`; without a plan, only note that this pass has a gradient.

        The gradient is recorded at the coordinates of the forward call, or, if that call was made
        in an earlier pass, at those that the clock shows now.
        Returns None, or under `anchorlib.graft` the other run's gradient, to be used instead.
        """
        at, now = self.at, self._observer.clock.now()
        if at[:2] != now[:2]:
            at = now
        return self._observer.gradient(self._plan, at, gradient)


class Observer:
    """Observes tensors in eager code for one session: records values, and hooks gradients.

    outside: is called with each output of compiled code whose gradient is recorded, with the
        output's autograd node, plan and coordinates, since a part of the gradient may stay inside
        the compiled code.
    """

    def __init__(self, clock: Clock, recorder: Recorder) -> None:
        self.clock = clock
        self.forwards = Forwards(clock)
        self.recorder = recorder
        self.lineage = LineageTracker(recorder.lineage)
        self.closed = False
        self.graft: Graft | None = None
        self.outside: Callable[[torch.Tensor, object, NameStreams, CallCoordinates], None] = (
            lambda *_told: None
        )
        self.scaling = UNSCALED  # stored with each gradient: the loss scale of mixed precision
        self.unscaled: Callable[[torch.Tensor], torch.Tensor] = lambda scaled: scaled
        self.unfollowed = UnfollowedCalls()
        self.due: Callable[[], None] | None = None  # to be called before training goes on
        self._hook_handles: list[HookHandle] = []
        self._prune_at = _HANDLES
        self._logged: set[str] = set()

    def value(  # noqa: C901, PLR0912, PLR0915  # inlined: each call would cost at every observation
        self, plan: NameStreams, x: torch.Tensor, *, grad: bool = True, given: Given | None = None
    ) -> None:
        """Observe `x` in the forward pass, and hook its gradient.

        A call that activation checkpointing repeats in backward is not recorded again. Under
        `anchorlib.graft`, `x` is overwritten with the other run's value.

        plan: what is recorded of the name of `x`. grad: False records no gradient. given: the
            module whose output `x` is, with the arguments of its call; None for other tensors.

        Raises nothing but UnsupportedError, for a tensor that an anchor cannot record.
        """
        try:
            backward = graph_task() != -1
            if backward and self._repeated(plan, x, wanted=grad):
                return
            if backward or (plan.use >= REACHED and _grad_enabled()):
                at = self.clock.count(plan.counted or plan.counters, backward=backward)
            else:
                at = self._place(plan)
            values, grads, only, only_grad = plan.routes.get(at[3]) or plan.route(at[3])
            shape = None if only is None else self.recorder.quick(only, at, x)
            if values and shape is None:
                self.recorder.observe(values, at, x)
            node = x.grad_fn
            if node is not None and grad and only_grad is not None:
                register_hook(x, node, GradientHook(self, plan, at))
            elif (node is not None or x.requires_grad) and at[3] != NO_GRAD:
                self._follow(plan, x, at, node, grads if grad else ())
            self.lineage.see(plan, x, at, node, grad=grad, shape=shape, given=given)
            if grads and grad and node is not None and type(node).__name__ == COMPILED_NODE:
                self.outside(x, node, plan, at)
            if self.graft is not None:
                self.graft.in_place(plan.name, "value", at, x, UNSCALED)
        except UnsupportedError:
            raise
        except Exception as fault:  # noqa: BLE001  # training goes on whatever happens here
            self.fault(plan.name, "value", fault)

    def _place(self, plan: NameStreams) -> CallCoordinates:
        gradients = _grad_enabled()
        at = self.forwards.place(plan, gradients=gradients)
        if not gradients and at.phase != NO_GRAD:
            self.unfollowed.remember(plan, at)
        return at

    def _repeated(self, plan: NameStreams, x: torch.Tensor, *, wanted: bool) -> bool:
        """Return whether activation checkpointing repeats a call whose value is recorded already.

        If the call was first made without gradients, the gradient of `x` is hooked now, in the
        repetition. If the repeated call is not known, the gradient is counted as skipped.
        plan: what is recorded of the name of `x`. wanted: whether the gradient is to be recorded.
        """
        what = repetition()
        if what is not Repetition.UNFOLLOWED:
            return what is Repetition.FOLLOWED
        at = self.unfollowed.take(plan)
        if at is None:
            self._miss(plan, x, wanted=wanted)
        elif not torch.is_grad_enabled():  # a checkpoint in a checkpoint, repeated once more later
            self.unfollowed.remember(plan, at)
        elif x.requires_grad:
            self._follow(plan, x, at, x.grad_fn, plan.streams("grad", at.phase) if wanted else ())
        return True

    def _miss(self, plan: NameStreams, x: torch.Tensor, *, wanted: bool) -> None:
        now = self.clock.now()
        streams = plan.streams("grad", now.phase)
        if wanted and x.requires_grad and not _all_idle(streams, now.step):
            self.recorder.skip(plan.name, "grad", _UNKNOWN, now.step)

    def forget_calls(self) -> None:
        """Forget the calls of the step that has ended: no checkpoint will repeat them."""
        self.unfollowed.clear()

    def gradient(
        self, plan: NameStreams | None, at: CallCoordinates, gradient: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Observe the gradient of a tensor whose forward call has the coordinates `at`.

        plan: what is recorded of the tensor; None: only note that the pass has a gradient.
            gradient: None is ignored.

        Returns None, or under `anchorlib.graft` the other run's gradient, to be used instead.
        """
        if self.closed or gradient is None:
            return None
        try:
            self.clock.gradient(at)
            if plan is not None:
                _, grads, _, _ = plan.routes.get(at.phase) or plan.route(at.phase)
                self.recorder.observe(grads, at, gradient, self.scaling)
                if self.graft is not None:
                    return self.graft.gradient(plan.name, "grad", at, gradient, self.scaling)
        except Exception as fault:  # noqa: BLE001  # inside backward
            self.fault(plan.name if plan else "", "grad", fault)
        return None

    def pass_gradient(
        self, plan: NameStreams, gradient: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Observe the gradient that one backward adds to a parameter, of the kind `pass_grad`.

        plan: what is recorded of the parameter. gradient: None is ignored.
        Returns None, or under `anchorlib.graft` the other run's gradient, to be used instead.
        """
        if self.closed or gradient is None:
            return None
        try:
            # Counted apart from forward's calls: one forward may have a second backward.
            at = self.clock.call((plan.name, "pass_grad"), backward=True)
            self.clock.gradient(at)
            self.recorder.observe(plan.streams("pass_grad", at.phase), at, gradient, self.scaling)
            if self.graft is not None:
                return self.graft.gradient(plan.name, "pass_grad", at, gradient, self.scaling)
        except Exception as fault:  # noqa: BLE001  # inside backward
            self.fault(plan.name, "pass_grad", fault)
        return None

    def kind(
        self,
        plan: NameStreams,
        kind: str,
        at: CallCoordinates,
        x: torch.Tensor,
        scaling: ScaleAndFlags = UNSCALED,
    ) -> None:
        """Observe a tensor that belongs to no forward call, such as a parameter or optimizer state.

        Under `anchorlib.graft`, `x` is overwritten with the other run's value.

        plan: what is recorded of the tensor's name. kind: the tensor's kind, such as "updated" or
            "opt.exp_avg". scaling: the loss scale and flags to store with the record.
        """
        streams = plan.streams(kind, at.phase)
        if not streams or self.closed:
            return
        try:
            self.recorder.observe(streams, at, x, scaling)
            if self.graft is not None:
                self.graft.in_place(plan.name, kind, at, x, scaling)
        except Exception as fault:  # noqa: BLE001  # inside a user's optimizer step
            self.fault(plan.name, kind, fault)

    def _follow(
        self,
        plan: NameStreams,
        x: torch.Tensor,
        at: CallCoordinates,
        node: Any,
        streams: tuple[Stream, ...],
    ) -> None:
        """Hook `x` to record its gradient, or at least to notice that its pass has a gradient.

        If no stream can select anything in this step, nothing is recorded. `x` is then hooked only
        where no other hook would notice the pass's gradient, or where `x` is a model's output.

        plan: what is recorded of `x`. at: the coordinates of the forward call. node: the autograd
            node that made `x`; None for a leaf. streams: those of the gradient, one for each mode;
            empty where the gradient is not recorded.
        """
        recorded: NameStreams | None = plan
        if not (streams and streams[0].at_once) and _all_idle(streams, at.step):
            # To notice a pass one hook is enough, but a model's output may be detached later.
            if not (self.clock.wants_gradient_hook() or plan.ends):
                return
            recorded = None
        if node is None:
            self._follow_leaf(recorded, x, at)
        else:
            register_hook(x, node, GradientHook(self, recorded, at))

    def _follow_leaf(self, plan: NameStreams | None, x: torch.Tensor, at: CallCoordinates) -> None:
        """Hook the leaf `x`, unless it has a hook for this plan: a leaf outlives the step.

        An earlier hook gets the new coordinates. Where this torch does not show a tensor's hooks,
        no hook is placed, and the gradient is counted as skipped.

        plan: what is recorded of `x`; None: the hook only notes that the pass has a gradient. at:
            the coordinates of the forward call.
        """
        if not hooks_are_known:  # an earlier hook could not be found, and hooks would pile up
            if plan is not None:
                self.recorder.skip(plan.name, "grad", NO_LEAF_HOOKS, at.step)
            return
        # Not kept in a dict by tensor: torch refuses to swap a tensor that has weak references.
        for hook in hooks_of(x).values():
            if isinstance(hook, GradientHook) and hook.serves(self, plan):
                hook.at = at
                return
        # Each batch that needs gradients is a new leaf.
        if len(self._hook_handles) >= self._prune_at:
            self._hook_handles = [one for one in self._hook_handles if not one.is_gone]
            self._prune_at = 2 * len(self._hook_handles) + _HANDLES
        self._hook_handles.append(add_tensor_hook(x, LeafHook(self, plan, at)))

    def catch_up(self) -> None:
        """Call the action `due`, if there is one, and forget it.

        It is an action that waits until training goes on. So this method is called as a watched
        model's forward begins, and in some sessions as an optimizer's step begins (see
        `catches_up_before_steps`).
        """
        due, self.due = self.due, None
        if due is not None:
            self.guarded(due)

    def guarded(self, action: Callable[[], object]) -> None:
        """Run `action` at once; if it raises, count and log the exception, and return.

        This keeps exceptions of ours out of the user's training.
        """
        try:
            action()
        except Exception as fault:  # noqa: BLE001  # inside a user's optimizer step
            self.fault("optimizer", "grad", fault)

    def fault(self, name: str, kind: str, fault: Exception) -> None:
        """Count and log `fault`, an exception of ours while `name` was observed; training goes on.

        Equal exceptions are logged once, but each is counted.
        kind: the kind of the observed tensor, such as "value" or "grad".
        """
        reason = f"{type(fault).__name__}: {fault}"[:200]
        self.recorder.skip(name, kind, reason, self.clock.step)
        if reason not in self._logged:
            self._logged.add(reason)
            _log.warning("anchorlib: %s was not recorded: %s", escape(join(name, kind)), reason)

    def close(self) -> None:
        """Observe nothing more, and remove the hooks from tensors that outlive the session."""
        self.closed = True
        for handle in self._hook_handles:
            handle.remove()
        self._hook_handles.clear()
        self.lineage.close()
