"""The coordinates of an observation in a run: step, pass and call, counted automatically.

    step        ends after the step of one of the optimizers (see `step_enders` for which), or at
                `session.step()`
    pass_index  n-th forward+backward inside a step: a forward observation after a gradient opens
                the next pass; without gradients, each further forward of a watched model opens one
    call        n-th use of a name inside the pass

A watched model is one that was given to `watch`. Passes and calls are counted separately for each
phase (see `phases`), so that validating in the middle of a step does not renumber the training
around it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from anchorlib.capture.counting.passes import Passes
from anchorlib.capture.counting.phases import Forward, Phases
from anchorlib.capture.counting.step_enders import StepEnders
from anchorlib.errors import OptionError
from anchorlib.scope import EVAL, NO_GRAD

__all__ = ["CallCoordinates", "Clock"]


class CallCoordinates(NamedTuple):
    """Coordinates of an observation without rank and attempt, which the store's writer adds."""

    step: int
    pass_index: int
    call: int
    phase: str


_tuple = tuple.__new__


class Clock:
    """Counts the coordinates of the observations of one session.

    first_step: the number of the first step. on_pass: called when a pass begins, with the pass's
        coordinates (call 0). on_step: called when a step ends, with the next step's number. label:
        returns the name of an optimizer.
    """

    def __init__(
        self,
        first_step: int = 0,
        *,
        on_pass: Callable[[CallCoordinates], None] = lambda _at: None,
        on_step: Callable[[int], None] = lambda _step: None,
        label: Callable[[Any], str] = lambda optimizer: type(optimizer).__name__,
    ) -> None:
        self.step = first_step
        self.phases = Phases()
        self.step_enders = StepEnders(label)
        self.trains = False  # whether a gradient or an optimizer was seen
        self._on_pass = on_pass
        self._on_step = on_step
        self._lock = threading.RLock()
        self._own = self.phases.own
        self._passes: dict[str, Passes] = {}
        self._explicit = False
        self._ended_by_optimizer = False
        self._gradient_since_step = False  # whether one was seen since an optimizer stepped last

    # -- phase

    @property
    def phase(self) -> str:
        """The phase of a record that this thread makes now."""
        return self.phases.here

    def in_phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager: records made by this thread inside have the phase `name`."""
        return self.phases.named(name)

    # -- pass and call

    def enter_root(
        self, root: int, *, training: bool, gradients: bool, trained: bool = False
    ) -> None:
        """Note that a watched model's forward begins, which sets the phase and may open a pass.

        root: the id of the model's root module. training: whether that module is in training mode.
        gradients: whether gradients are enabled. True also for a forward that backward may repeat
            with gradients (reentrant checkpointing).
        trained: whether an optimizer is known to train the model. The caller has to find that out
            only for a forward without gradients that runs inside no other watched model's forward;
            for all others it gives False.
        """
        with self._lock:
            around = self.phases.forward
            forward = self._kind(around, training=training, gradients=gradients, trained=trained)
            self.phases.enter(forward)
            if forward is Forward.BESIDE:
                return
            passes = self._current()
            # A forward without gradients is a pass by itself: no gradient will end the pass.
            if around is None and root in passes.roots and not (gradients and training):
                passes.next()
            self._open(passes, self.phase)
            passes.roots.add(root)

    def _kind(
        self, around: Forward | None, *, training: bool, gradients: bool, trained: bool
    ) -> Forward:
        if not training or around is Forward.EVALUATION:
            return Forward.EVALUATION
        if gradients:
            return Forward.TRAINING
        if around is not None:
            return around
        if self.phases.is_named:
            return Forward.TRAINING
        if trained:
            return Forward.MONITORING
        return Forward.BESIDE if self.trains else Forward.TRAINING

    def leave_root(self) -> None:
        """Note that the forward of a watched model has ended, so that its phase ends."""
        self.phases.leave()

    def call(self, name: Hashable, *, backward: bool = False) -> CallCoordinates:
        """Count an observation of `name`, and return the observation's coordinates.

        name: the key under which calls are counted. backward: whether the observation is made
            inside a backward, where it opens no pass.
        """
        return self.count((name,), backward=backward)

    def count(
        self,
        counters: tuple[Hashable, ...],
        *,
        backward: bool = False,
        opens: bool = True,
        phase: str | None = None,
    ) -> CallCoordinates:
        """Count an observation on each of the given counters, and return its coordinates.

        counters: keys, one for each mode of the observed name, since each mode counts calls on its
            own. The coordinates have the highest of the counts.
        backward: whether the observation is made inside a backward, where it opens no pass. opens:
            False where the observation is no part of training, and so begins no pass. phase: the
            phase of the observation; None for this thread's phase.
        """
        if phase is None:
            phase = self.phases.in_backward() if backward else self._own.thread.phase
        passes = self._passes.get(phase)
        if (
            passes is None
            or not passes.started
            or (passes.gradient_seen and not backward)
            or len(counters) > 1
        ):
            return self._count_first(counters, phase, backward=backward, opens=opens)
        counter = counters[0]
        calls = passes.calls
        try:
            n = next(calls[counter])
        except KeyError:
            n = passes.call(counters)
        # A NamedTuple's own constructor would cost as much as the rest of this method.
        return _tuple(CallCoordinates, (passes.step, passes.index, n, phase))

    def _count_first(
        self, counters: tuple[Hashable, ...], phase: str, *, backward: bool, opens: bool
    ) -> CallCoordinates:
        """Count an observation where a pass may begin, or where it has several counters.

        The arguments and the returned coordinates are those of `count`.
        """
        with self._lock:
            passes = self._passes.get(phase) or self._new(phase)
            if not passes.started or (passes.gradient_seen and not backward):
                self._open(passes, phase, begins=opens)
            return CallCoordinates(passes.step, passes.index, passes.call(counters), phase)

    def now(self) -> CallCoordinates:
        """Return the coordinates of an event that is no call: the current pass, call 0."""
        with self._lock:
            return CallCoordinates(self.step, self._current().index, 0, self.phase)

    @property
    def is_open(self) -> bool:
        """Whether a pass has begun in this thread's phase, and no gradient of it was seen yet."""
        passes = self._current()
        return passes.started and not passes.gradient_seen

    def wants_gradient_hook(self) -> bool:
        """Return whether the caller has to place a hook that notices the current pass's gradient.

        True is returned once for each pass; later calls return False, since they rely on the first
        caller's hook.
        """
        passes = self._current()
        ready, passes.ready = passes.ready, True
        return not ready

    def gradient(self, at: CallCoordinates | None = None) -> None:
        """Note that a gradient arrived: the next forward observation of its phase opens a pass.

        at: the coordinates of the forward call to which the gradient belongs. None where they are
            unknown: the gradient then has this thread's phase. A gradient of an earlier step's
            forward opens no pass.
        """
        self._ended_by_optimizer = False
        self._gradient_since_step = self.trains = True
        if at is None:
            phase = self.phase
        else:
            phase = at[3]
            self.phases.gradient(phase)
            if at[0] != self.step:
                return  # a backward of an earlier step does not end a pass of the open one
        passes = self._passes.get(phase)
        if passes is not None and passes.started:
            passes.gradient_seen = True

    def _current(self) -> Passes:
        phase = self.phase
        passes = self._passes.get(phase)
        if passes is None:
            with self._lock:
                passes = self._passes.get(phase) or self._new(phase)
        return passes

    def _new(self, phase: str) -> Passes:
        passes = self._passes[phase] = Passes(self.step)
        return passes

    def _open(self, passes: Passes, phase: str, *, begins: bool = True) -> None:
        if passes.started:
            if not passes.gradient_seen:
                return
            passes.next()
        if begins:
            passes.started = True
            self._on_pass(CallCoordinates(self.step, passes.index, 0, phase))

    # -- step

    def bind(self, optimizer: object) -> None:
        """Let `optimizer` end the session's steps, unless another optimizer does so already.

        Later, another optimizer may take its place: see `step_enders`.
        """
        self.trains = True
        self.step_enders.name(optimizer)

    @property
    def has_begun(self) -> bool:
        """Whether an observation was counted, an optimizer stepped, or a step was ended by hand."""
        return self.step_enders.have_begun or any(one.started for one in self._passes.values())

    @property
    def is_at_boundary(self) -> bool:
        """Whether nothing was observed in the open step so far."""
        return not any(one.started for one in self._passes.values())

    def unbind(self) -> None:
        """Forget the optimizer that `bind` was given, so that another one can be bound.

        Does nothing once an optimizer has stepped, or a step was ended by hand.
        """
        self.step_enders.unname()

    def optimizer_stepped(self, optimizer: object) -> None:
        """Note that a step of `optimizer` has completed, which may end the session's step."""
        with self._lock:
            self.trains = True
            place = self._current().index
            ends = self.step_enders.stepped(
                optimizer, place, by_hand=self._explicit, gradient=self._gradient_since_step
            )
            self._gradient_since_step = False
        if ends:
            self._end(self.step + 1)
            self._ended_by_optimizer = True

    def end_step(self, number: object = None) -> None:
        """End the step by hand; from now on only this method ends steps.

        If an optimizer has ended the step, and no gradient came since, the first call of this
        method ends no further step.
        number: the number of the next step; None: one more than that of the ended step.
        Raises OptionError for a `number` that is no int from 0 on.
        """
        if not isinstance(number, int | None) or (number is not None and number < 0):
            raise OptionError(f"a step is a whole number from 0 on, not {number!r}")
        ended_already = self._ended_by_optimizer and not self._explicit
        self._explicit = True
        self._ended_by_optimizer = False
        upcoming = self.step if ended_already else self.step + 1
        self._end(
            upcoming if number is None else number, counted=number is None and not ended_already
        )

    def _end(self, upcoming: int, *, counted: bool = True) -> None:
        with self._lock:
            passes = [
                one.index + one.started
                for phase, one in self._passes.items()
                if phase not in {EVAL, NO_GRAD}
            ]
            if counted or any(passes):
                self.step_enders.end(max(passes, default=0))
            self.step = upcoming
            self._passes = {}
        self._on_step(upcoming)
