"""Which execution of a graph an operator belongs to, and the coordinates of its site there.

    forward    the first operator of an execution replays the graph's program through the clock;
               each site then has its coordinates, in whatever order the operators run
    backward   an execution is known by the autograd node that runs: its sequence number is the
               one that forward saw
    recomputation (activation checkpointing) finds the execution that it repeats

Calls are counted by the clock, together with those of eager code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from anchorlib.capture.compiled.programs import Enter, Event, Leave, Phase, Place, Program
from anchorlib.capture.counting import At
from anchorlib.capture.eager import Observer
from anchorlib.capture.recording import Plan
from anchorlib.scope import NO_GRAD
from anchorlib.torch_private import (
    backward_of_compiled_autograd,
    current_node,
    graph_task,
    next_sequence,
    sequence_number,
)

__all__ = ["Executions", "Watched", "in_backward"]

# Executions of one graph whose backward may still come: of the step that is open, and after it.
_REMEMBERED = 256
_KEPT = 16


class Watched(Protocol):
    """A watched model, as compiled code sees it."""

    def plan(self, name: str) -> Plan:
        """The plan of one name."""

    def wants(self, name: str) -> tuple[bool, bool]:
        """Whether the value and the gradient of `name` are recorded."""

    def enter(self, *, training: bool, gradients: bool) -> None:
        """Its forward begins."""

    def leave(self) -> None:
        """Its forward has ended."""


class _Execution:
    """One execution of a graph."""

    __slots__ = ("at", "node", "repeated", "seen")

    def __init__(self, at: dict[int, At]) -> None:
        self.at = at
        self.node = -1  # the newest node that was seen while it ran
        self.seen: set[int] = set()  # sites that have come
        self.repeated: set[int] = set()  # sites that backward has run again


class Executions:
    """The executions of one session.

    plan_of: the plan of a name and of the text of its modes; None where calls are not counted.
    """

    def __init__(
        self,
        observer: Observer,
        plan_of: Callable[[str, str], Plan | None],
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

    def forward(self, program: Program, site: int) -> At | None:
        """An operator runs in forward: its coordinates."""
        event = program.events[site]
        if isinstance(event, Place) and event.body:
            return self._call(event)
        key = (threading.get_ident(), program.number)
        execution = self._running.get(key)
        if execution is None or site in execution.seen:
            execution = self._running[key] = self._latest[program.number] = self._replay(program)
        execution.seen.add(site)
        if isinstance(event, Place) and event.gradients:
            self._bind(program, execution)
        return execution.at.get(site)

    def backward(self, program: Program, site: int, place: Place) -> tuple[At | None, bool]:
        """An operator runs in backward: its coordinates, and whether it was not there before.

        It repeats forward, or it stands in a custom Function.backward.
        """
        if place.backward:
            plan = self._plan_of(place.name, place.modes)
            if plan is None:
                return None, False
            return self._clock.count(plan.counters, backward=True), True
        # What ran without gradients has none to be told where.
        execution = self._repeated(program, site) if place.gradients else None
        return (None if execution is None else execution.at.get(site)), False

    def gradient(self, program: Program, site: int) -> At | None:
        """The coordinates of a gradient, where the node that runs tells its execution."""
        execution = self._of_node(program)
        return None if execution is None else execution.at.get(site)

    def latest(self, program: Program, site: int) -> At | None:
        """The coordinates of `site` in the last execution that has begun."""
        execution = self._latest.get(program.number)
        return None if execution is None else execution.at.get(site)

    def end_step(self) -> None:
        """A step has ended."""
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
        return _Execution({site: found for site, found in at.items() if found is not None})

    def _replayed(self, event: Event) -> At | None:
        match event:
            case Place(backward=False, body=False):
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

    def _call(self, place: Place) -> At | None:
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
        """Remember which node will run its backward: the newest one, which AOT autograd has made.

        Within it gradients are disabled. A graph that DDP has split has several.
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
        """The execution that activation checkpointing runs again."""
        execution = self._of_node(program)
        if execution is None and _node_number() < 0:
            execution = self._last_not_repeated(program, site)  # compiled autograd tells no node
        elif execution is None:
            execution = self._of_reentrant(program, site)
        if execution is not None:
            execution.repeated.add(site)
        return execution

    def _last_not_repeated(self, program: Program, site: int) -> _Execution | None:
        remembered = reversed(self._recent.get(program.number, {}).values())
        return next((one for one in remembered if site not in one.repeated), None)

    def _of_reentrant(self, program: Program, site: int) -> _Execution | None:
        """Reentrant checkpointing: another program ran forward, without gradients."""
        key = (program.number, _node_number())
        execution = self._again.get(key)
        if execution is not None and site not in execution.repeated:
            return execution
        at: dict[int, At] = {}
        for other, event in enumerate(program.events):
            if isinstance(event, Place):
                plan = self._plan_of(event.name, event.modes)
                found = None if plan is None else self._observer.unfollowed.take(plan)
                if found is not None:
                    at[other] = found
        if not at:
            return None
        execution = self._again[key] = self._latest[program.number] = _Execution(at)
        self._bind(program, execution)
        return execution


def _node_number() -> int:
    """The sequence number of the autograd node that runs; -1 if none does."""
    node: Any = current_node()
    return -1 if node is None else sequence_number(node)


def in_backward() -> bool:
    """Whether a backward is running in this thread, compiled autograd's included."""
    return graph_task() != -1 or backward_of_compiled_autograd()
