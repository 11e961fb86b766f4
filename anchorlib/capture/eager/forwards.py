"""How forwards under `no_grad` are counted, so that they do not shift training's coordinates.

    monitoring      a forward of the trained model, to look at it: has the phase "no_grad"
    beside          a forward of another model (a teacher, an average of weights): counts as further
                    calls in the pass of training that is open or comes next
    inference       a forward of a watched model where nothing is trained: counts as a pass
    checkpointed    a forward that backward will repeat with gradients: counts as one of training

A watched model is one that was given to `watch`; its forward is that of the root module. The case
is decided when the forward begins. For an anchor outside of watched models, or in a part of one
that is called alone, it is decided by the anchor's name: if the name was used with gradients
before, and is used without gradients while no pass of training is open, this use belongs to
monitoring. So do uses before anything was trained, in a module that will be trained, and all later
uses of such a name until it is used with gradients.
"""

from __future__ import annotations

from weakref import ref

from torch import nn

from anchorlib.capture.counting import CallCoordinates, Clock, Forward
from anchorlib.capture.eager.call_sites import Surroundings, held_by_optimizer, surroundings
from anchorlib.capture.recording import LOOKED, MIXED, NEW, QUIET, REACHED, NameStreams
from anchorlib.scope import NO_GRAD

__all__ = ["Forwards"]


class Forwards:
    """Decides, for one session, the coordinates of each forward and of each anchor in it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = False  # whether any name was used with gradients
        self._watched = False  # whether any forward was one of monitoring
        # Whether a module is trained; by id, since a module of the user's need not be hashable.
        self._trained: dict[int, tuple[ref[nn.Module], bool]] = {}
        self._reached: set[int] = set()  # watched roots that ran with gradients

    def know_trained(self, model: nn.Module) -> None:
        """Note that `model` is trained.

        Called for a model whose optimizer `watch` was given.
        """
        self._trained[id(model)] = (ref(model), True)

    # -- watched roots

    def enter(self, root: nn.Module, *, training: bool, gradients: bool) -> None:
        """Decide how the forward of a watched model is counted, and tell the clock that it begins.

        root: the model's root module. training: whether `root` is in training mode. gradients:
            whether gradients are enabled.
        """
        number, outermost = id(root), self._clock.phases.forward is None
        if not gradients and outermost:
            gradients = surroundings().awaited
        if gradients:
            self._reached.add(number)
        trained = not gradients and outermost and self._is_trained(root, search=training)
        self._watched = self._watched or trained
        self._clock.enter_root(number, training=training, gradients=gradients, trained=trained)

    def _is_trained(self, root: nn.Module, *, search: bool) -> bool:
        if id(root) in self._reached and self._clock.trains:
            return True
        return self._held(root) if search else id(root) in self._trained and self._held(root)

    def _held(self, module: nn.Module) -> bool:
        """Return whether an optimizer holds trained parameters of `module`.

        The search, which takes long, is made once for each module; then its result is remembered.
        If the result is True, the clock's `trains` is set: the process trains something.
        """
        known = self._trained.get(id(module))
        if known is None or known[0]() is not module:
            known = self._trained[id(module)] = (ref(module), held_by_optimizer(module))
        if known[1]:
            self._clock.trains = True
        return known[1]

    # -- names

    def place(self, plan: NameStreams, *, gradients: bool) -> CallCoordinates:
        """Count a use of a name in forward, and return its coordinates.

        plan: what is recorded of the name. gradients: whether gradients are enabled.
        """
        if not gradients:
            return self._place_without(plan)
        self._use(plan)
        return self._clock.count(plan.counters)

    def _use(self, plan: NameStreams) -> None:
        if plan.use < REACHED:
            plan.use = REACHED
        self._began = True

    def _place_without(self, plan: NameStreams) -> CallCoordinates:
        clock, forward = self._clock, self._clock.phases.forward
        if clock.phases.is_named or forward not in {None, Forward.BESIDE}:
            return clock.count(plan.counters)
        around = Surroundings(awaited=False, module=None)
        if forward is None and plan.use in {NEW, LOOKED, REACHED}:
            around = surroundings()
        if around.awaited:
            self._use(plan)
            return clock.count(plan.counters)
        if self._is_monitoring(plan, around.module, outermost=forward is None):
            self._watched = True
            plan.use = LOOKED if plan.use == NEW else plan.use
            return clock.count(plan.counters, phase=NO_GRAD)
        if plan.use == NEW:
            plan.use = QUIET
        return clock.count(plan.counters, opens=not clock.trains)

    def _is_monitoring(
        self, plan: NameStreams, module: nn.Module | None, *, outermost: bool
    ) -> bool:
        """Return whether a use of a name without gradients belongs to monitoring the training.

        A use of a name outside of watched models, while a pass is open, is part of that pass's
        forward if the name was used with gradients before. The plan's `use` then becomes MIXED,
        and no later use of the name counts as monitoring.

        plan: what is recorded of the name. module: the outermost module that is being called; None
            without one. outermost: whether no forward of a watched model runs.
        """
        if plan.use == REACHED:
            if outermost and self._clock.is_open:  # part of the forward of the open pass
                plan.use = MIXED
                return False
            return self._clock.trains
        if plan.use == LOOKED:
            return outermost
        if plan.use != NEW or self._began or not outermost:
            return False
        # Before any training: the user evaluates a model that will be trained, or its loss.
        return self._watched or (module is not None and self._held(module))
