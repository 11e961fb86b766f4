"""Which execution of a graph an operator belongs to, and the coordinates of its anchor there.

A graph's program is the list of its anchors in the order of the code; a site is an index in this
list. An execution is one run of a graph.

    forward    the first operator of an execution replays the graph's program through the clock,
               which gives each site its coordinates, in whatever order the operators run
    backward   an execution is found by the sequence number of the autograd node that runs, which
               was noted in forward
    recomputation (activation checkpointing) gets the coordinates of the execution it repeats

The session's clock counts calls in compiled and in eager code together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from anchorlib.capture.compiled.programs import AnchorPlace, Enter, Event, Leave, Phase, Program
from anchorlib.capture.counting import CallCoordinates
from anchorlib.capture.eager import Observer
from anchorlib.capture.recording import NameStreams
from anchorlib.scope import NO_GRAD
from anchorlib.torch_private import (
    backward_of_compiled_autograd,
    current_node,
    graph_task,
    next_sequence,
    sequence_number,
)

__all__ = ["Executions", "Watched", "in_backward"]

# The most executions of one graph to keep for a backward: during their step, and after its end.
_REMEMBERED = 256
_KEPT = 16


class Watched(Protocol):
    """The methods of a watched model that compiled code calls."""

    def plan(self, name: str) -> NameStreams:
        """Return the plan of `name`, which says how its observations are recorded."""

    def wants(self, name: str) -> tuple[bool, bool]:
        """Return whether the value, and whether the gradient of `name` is recorded."""

    def enter(self, *, training: bool, gradients: bool) -> None:
        """Note that the model's forward begins, so that its pass and phase are known.

        training: whether the model is in training mode. gradients: whether gradients are enabled.
        """

    def leave(self) -> None:
        """Note that the forward of the model has ended, so that its phase ends."""


class _Execution:
    """An execution of a graph.

    at: the coordinates of each anchor, by its site (the anchor's index in the graph's program).
    """

    __slots__ = ("at", "node", "repeated", "seen")

    def __init__(self, at: dict[int, CallCoordinates]) -> None:
        self.at = at
        self.node = -1  # number of the newest autograd node that was seen while it ran
        self.seen: set[int] = set()  # sites whose operators have run in forward
        self.repeated: set[int] = set()  # sites whose operators have run again in backward


class Executions:
    """The executions of compiled graphs in one session.

    Calls without a plan are not counted.

    plan_of: returns the plan of a name, that is, what is recorded of it. Its arguments are the name
        and the text of the anchor's modes; it returns None without a name, and where the name's
        watched model is not known. watched: the watched models, by the number of their
        `ModelWatch`.
    """

    def __init__(
        self,
        observer: Observer,
        plan_of: Callable[[str, str], NameStreams | None],
        watched: Mapping[int, Watched],
    ) -> None:
        self._observer = observer
        self._clock = observer.clock
        self._plan_of = plan_of
        self._watched = watched
        self._phases: list[AbstractContextManager[None]] = []
        self._running: dict[tuple[int, int], _Execution] = {}
        self._latest: dict[int, _Execution] = {}
        # By program, and by the sequence number of the node that will run its backward.
        self._recent: dict[int, dict[int, _Execution]] = {}
        # By program, and by the sequence number of the node of reentrant checkpointing.
        self._again: dict[tuple[int, int], _Execution] = {}

    def forward(self, program: Program, site: int) -> CallCoordinates | None:
        """Return the coordinates of the operator that runs in forward now.

        Also notes that this operator of the execution has run. The first operator of an execution
        has the calls of all anchors in the program counted, in the program's order.
        site: the index of the operator's anchor in the graph's program.
        Returns None where nothing is recorded or counted at this site.
        """
        event = program.events[site]
        if isinstance(event, AnchorPlace) and event.body:
            return self._call(event)
        key = (threading.get_ident(), program.number)
        execution = self._running.get(key)
        if execution is None or site in execution.seen:
            execution = self._running[key] = self._latest[program.number] = self._replay(program)
        execution.seen.add(site)
        if isinstance(event, AnchorPlace) and event.gradients:
            self._bind(program, execution)
        return execution.at.get(site)

    def backward(
        self, program: Program, site: int, place: AnchorPlace
    ) -> tuple[CallCoordinates | None, bool]:
        """Return the coordinates of a value that is seen in backward, and whether to record it.

        The value is to be recorded if the operator stands in a custom Function.backward. Otherwise
        activation checkpointing repeats forward, where the value was recorded already.
        site: the index of the operator's anchor in the graph's program. place: this anchor.
        The coordinates are None where nothing is recorded of the name, where it is not known which
        execution is repeated, and where the forward had no gradients.
        """
        if place.backward:
            plan = self._plan_of(place.name, place.modes)
            if plan is None:
                return None, False
            return self._clock.count(plan.counters, backward=True), True
        # A forward without gradients has no backward that could need its coordinates.
        execution = self._repeated(program, site) if place.gradients else None
        return (None if execution is None else execution.at.get(site)), False

    def gradient(self, program: Program, site: int) -> CallCoordinates | None:
        """Return the coordinates for the gradient at `site`, in the execution whose backward runs.

        site: the index of the anchor in the graph's program.
        Returns None where the running autograd node belongs to no known execution.
        """
        execution = self._of_node(program)
        return None if execution is None else execution.at.get(site)

    def latest(self, program: Program, site: int) -> CallCoordinates | None:
        """Return the coordinates of `site` in the execution that began last; None if unknown.

        site: the index of an anchor in the graph's program.
        """
        execution = self._latest.get(program.number)
        return None if execution is None else execution.at.get(site)

    def end_step(self) -> None:
        """Forget the executions of the step that has ended, except the last 16 of each graph.

        These 16 are kept because a backward may run after the end of its step.
        """
        self._running.clear()
        self._again.clear()
        for recent in self._recent.values():
            for number in list(recent)[:-_KEPT]:
                del recent[number]

    # -- the program, in its own order

    def _replay(self, program: Program) -> _Execution:
        at = {site: self._replayed(event) for site, event in enumerate(program.events)}
        while self._phases:
            self._phases.pop().__exit__(None, None, None)
        return _Execution({site: there for site, there in at.items() if there is not None})

    def _replayed(self, event: Event) -> CallCoordinates | None:
        match event:
            case AnchorPlace(backward=False, body=False):
                return self._call(event)
            case Enter(watch, training, gradients) if watch in self._watched:
                self._watched[watch].enter(training=training, gradients=gradients)
                return self._clock.now()
            case Leave(watch) if watch in self._watched:
                self._watched[watch].leave()
            case Phase(None) if self._phases:
                self._phases.pop().__exit__(None, None, None)
            case Phase(str(name)):
                self._phases.append(self._clock.in_phase(name))
                self._phases[-1].__enter__()
        return None

    def _call(self, place: AnchorPlace) -> CallCoordinates | None:
        if not place.name:
            return self._clock.now()
        plan = self._plan_of(place.name, place.modes)
        if plan is None:
            return None
        at = self._observer.forwards.place(plan, gradients=place.gradients)
        if not place.gradients and at.phase != NO_GRAD:
            self._observer.unfollowed.remember(plan, at)
        return at

    # -- backward

    def _bind(self, program: Program, execution: _Execution) -> None:
        """Remember that the newest autograd node will run the backward of this execution.

        AOT autograd makes that node before it runs the graph with gradients disabled. A graph that
        DDP has split has several such nodes, each remembered. Does nothing while gradients are
        enabled, since the newest node then belongs to other code.
        """
        node = next_sequence() - 1
        if node == execution.node or torch.is_grad_enabled():
            return
        execution.node = node
        recent = self._recent.setdefault(program.number, {})
        recent[node] = execution
        if len(recent) > _REMEMBERED:
            del recent[next(iter(recent))]

    def _of_node(self, program: Program) -> _Execution | None:
        recent = self._recent.get(program.number)
        return None if recent is None else recent.get(_node_number())

    def _repeated(self, program: Program, site: int) -> _Execution | None:
        """Return the execution that activation checkpointing repeats in backward; None if unknown.

        Also notes that the operator at `site`, an index in `program`, has run again.
        """
        execution = self._of_node(program)
        if execution is None and _node_number() < 0:
            execution = self._last_not_repeated(program, site)  # compiled autograd runs no node
        elif execution is None:
            execution = self._of_reentrant(program, site)
        if execution is not None:
            execution.repeated.add(site)
        return execution

    def _last_not_repeated(self, program: Program, site: int) -> _Execution | None:
        remembered = reversed(self._recent.get(program.number, {}).values())
        return next((one for one in remembered if site not in one.repeated), None)

    def _of_reentrant(self, program: Program, site: int) -> _Execution | None:
        """Return the execution that reentrant checkpointing repeats; None where it is not known.

        Reentrant checkpointing ran the forward as another program, without gradients. The
        coordinates that the calls of each name got then were remembered: they become those of the
        execution that is returned.
        site: the index of the running operator's anchor in `program`.
        """
        key = (program.number, _node_number())
        execution = self._again.get(key)
        if execution is not None and site not in execution.repeated:
            return execution
        at: dict[int, CallCoordinates] = {}
        for other, event in enumerate(program.events):
            if isinstance(event, AnchorPlace):
                plan = self._plan_of(event.name, event.modes)
                call = None if plan is None else self._observer.unfollowed.take(plan)
                if call is not None:
                    at[other] = call
        if not at:
            return None
        execution = self._again[key] = self._latest[program.number] = _Execution(at)
        self._bind(program, execution)
        return execution


def _node_number() -> int:
    """Return the sequence number of the autograd node that runs; -1 if no node runs."""
    node: Any = current_node()
    return -1 if node is None else sequence_number(node)


def in_backward() -> bool:
    """Return whether a backward runs in this thread, including one of compiled autograd."""
    return graph_task() != -1 or backward_of_compiled_autograd()
