"""The anchors and phases of one graph, in program order, noted while dynamo traced the graph.

Inductor may run anchors in another order than the source code has them. Coordinates are defined by
the source order: each graph has a `Program`, made while the graph is traced, and every execution
of the graph takes its coordinates from the program (see `executions`).

The graph contains its program's number. Numbers count up from 0 in each process, so that a second
process that compiles the same code gets the same graph, and finds it in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from anchorlib.torch_private import (
    CompileContext,
    enclosing_operators,
    traced_functions,
    tracing_backend,
)

__all__ = [
    "AnchorPlace",
    "AnchorReference",
    "Enter",
    "Event",
    "Leave",
    "Phase",
    "Program",
    "current_program",
    "enclosing",
    "program_of",
    "traced_in_backward",
]


class AnchorReference(NamedTuple):
    """What an operator in a graph knows of its anchor, as constants: name, modes, program and site.

    site: the anchor's index in the program. Where another process traced the graph, the program is
        not known here; name and modes are then enough to record.
    """

    name: str
    modes: str
    program: int
    site: int


@dataclass(frozen=True, slots=True)
class AnchorPlace:
    """An event of a program: an anchor or a watched tensor in the traced code.

    name: the tensor's; "" for a place that records nothing and only takes part in counting passes.
    modes: texts of modes joined by commas, "" for the session's, `watch:N` for watched model N.
    gradients: whether gradients were enabled at the place.
    backward: whether the place is in a custom Function.backward.
    body: whether the place is in an operator's traced body, which may run any number of times.
    """

    name: str
    modes: str
    gradients: bool
    backward: bool = False
    body: bool = False


@dataclass(frozen=True, slots=True)
class Enter:
    """An event of a program: the forward of a watched model begins.

    watch: the number of the model's `ModelWatch`. training: whether the model is in training mode.
        gradients: whether gradients are enabled.
    """

    watch: int
    training: bool
    gradients: bool


@dataclass(frozen=True, slots=True)
class Leave:
    """An event of a program: the forward of a watched model has ended.

    watch: the number of the model's `ModelWatch`.
    """

    watch: int


@dataclass(frozen=True, slots=True)
class Phase:
    """An event of a program: a `session.phase` begins or ends.

    name: the phase that begins; None: the innermost phase ends.
    """

    name: str | None


Event: TypeAlias = AnchorPlace | Enter | Leave | Phase


@dataclass(slots=True)
class Program:
    """The events of one graph, in program order; an event's index is its site.

    number: the program's number in this process.
    backend: torch.compile's name of the graph's backend, "" where that is not known.
    lost: the sites at which the gradient cannot be hooked, each with the reason.
    autocast: the dtype of autocast at the last anchor at which it was on; None where it never was.
    """

    number: int
    backend: str
    events: list[Event] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    autocast: str | None = None
    _repeated: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    _counted: int = 0

    def add(self, event: Event) -> int:
        """Append `event`; return its site, that is, its index in the program."""
        self.events.append(event)
        return len(self.events) - 1

    def sites(self, name: str, modes: str) -> list[int]:
        """Return the sites of those anchors of a name that each execution visits once, in order.

        A site is an index in `events`. Left out are anchors in a custom Function.backward, and in
        an operator's body that may run any number of times.

        modes: the texts of the anchors' modes joined by commas, "" for the session's modes, or
            `watch:N` for tensors of the watched model number N.
        """
        for site in range(self._counted, len(self.events)):
            event = self.events[site]
            if isinstance(event, AnchorPlace) and not (event.backward or event.body):
                self._repeated.setdefault((event.name, event.modes), []).append(site)
        self._counted = len(self.events)
        return self._repeated.get((name, modes), [])


# Operators with a body through which gradients flow in the traced graph.
_TRANSPARENT = {
    "None",
    "autograd.Function",
    "register_hook",
    "tag_activation_checkpoint",
    "wrap_activation_checkpoint",
}

_programs: list[Program] = []
# By dynamo's context: the attempt and its program. dynamo may trace a graph more than once, and
# each attempt gets a new program.
_tracing: WeakKeyDictionary[Any, tuple[int, Program]] = WeakKeyDictionary()


def program_of(anchor: AnchorReference) -> Program | None:
    """Return the program that has `anchor`; None where another process traced the graph."""
    if not 0 <= anchor.program < len(_programs):
        return None
    program = _programs[anchor.program]
    event = program.events[anchor.site] if anchor.site < len(program.events) else None
    return program if getattr(event, "name", "") == anchor.name else None


def current_program() -> Program:
    """Return the program (list of anchors) of the graph that dynamo is tracing.

    An empty program is made and returned if the graph has none yet, or if dynamo has begun to
    trace the graph anew.
    """
    context = CompileContext.try_get()
    if context is None:
        return _new_program()
    known = _tracing.get(context)
    if known is not None and known[0] == context.attempt:
        return known[1]
    program = _new_program()
    _tracing[context] = (context.attempt, program)
    return program


def _new_program() -> Program:
    program = Program(len(_programs), tracing_backend())
    _programs.append(program)
    return program


def traced_in_backward() -> bool:
    """Return whether dynamo is tracing the backward of a custom Function."""
    return "backward" in traced_functions()


def enclosing() -> str:
    """Return the name of the operator around the traced code that keeps gradients from hooks.

    Such an operator, for example a loop, has a body of traced code, in which hooks get no
    gradients. Of several, one inside the other, the innermost is named. Return "" if there is none.
    """
    return next((one for one in enclosing_operators() if one not in _TRANSPARENT), "")
