"""Which phase a record carries; each thread has phases of its own.

    session.phase(name)     `name`, for records made inside by the thread that entered it
    a watched model's       "eval" where the model is in eval mode; "no_grad" where the model is
    forward                 trained and runs without gradients; else "train"

A phase that was set by `session.phase` takes precedence. A backward has the phase of the thread
that called it, whichever threads autograd runs it in. A gradient carries the phase of its forward,
and other records made inside a backward carry the phase of that backward's first gradient.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from anchorlib.scope import EVAL, NO_GRAD, TRAIN
from anchorlib.torch_private import graph_task, is_passed_on, pass_on, passed_on

__all__ = ["Forward", "Phases"]

_KEY = "anchorlib.phases"
_REMEMBERED = 64  # most backwards to remember; many threads may each run one


class Forward(Enum):
    """How the forward of a watched model runs; the value is the phase of records made inside.

    "" means that the forward sets no phase of its own.
    """

    TRAINING = TRAIN
    EVALUATION = EVAL
    # Of a model that is trained, but without gradients.
    MONITORING = NO_GRAD
    # Without gradients, of another model than the trained one: a teacher, averaged weights.
    BESIDE = ""


class _Thread:
    """The phases and forwards of watched models that one thread has entered and not left.

    Each phase and forward is kept with autograd's number of the backward inside which it was
    entered, or -1 if it was entered outside of a backward.
    """

    __slots__ = ("forwards", "named", "owner", "phase", "since")

    def __init__(self, owner: Phases) -> None:
        self.owner = owner
        self.named: list[tuple[str, int]] = []
        self.forwards: list[tuple[Forward, int]] = []
        self.phase = TRAIN
        self.since = -1  # the innermost backward in which a phase or forward was entered

    def changed(self) -> None:
        if self.named:
            self.phase = self.named[-1][0]
        else:
            self.phase = (self.forwards[-1][0].value if self.forwards else "") or TRAIN
        self.since = max(
            (entered[-1][1] for entered in (self.named, self.forwards) if entered), default=-1
        )


class _Own(threading.local):
    def __init__(self, owner: Phases) -> None:
        self.thread = _Thread(owner)


class Phases:
    """Says which phase a record of a session carries; each thread has its own phases."""

    def __init__(self) -> None:
        self.own = _Own(self)
        self._backwards: dict[int, str] = {}  # phases, by autograd's number of the backward

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """Return a context manager: records made by this thread inside have the phase `name`."""
        thread = self._entering()
        entry = (name, graph_task())
        thread.named.append(entry)
        thread.changed()
        try:
            yield
        finally:
            thread.named.remove(entry)
            thread.changed()

    def enter(self, forward: Forward) -> None:
        """Note that the forward of a watched model begins in this thread.

        forward: how it runs, which sets the phase of records made inside.
        """
        thread = self._entering()
        thread.forwards.append((forward, graph_task()))
        thread.changed()

    def leave(self) -> None:
        """Note that the innermost forward of a watched model has ended in this thread."""
        thread = self.own.thread
        if thread.forwards:
            thread.forwards.pop()
            thread.changed()

    @property
    def forward(self) -> Forward | None:
        """The innermost forward of a watched model that runs in this thread; None without one."""
        forwards = self.own.thread.forwards
        return forwards[-1][0] if forwards else None

    @property
    def is_named(self) -> bool:
        """Whether this thread is inside a `session.phase`."""
        return bool(self.own.thread.named)

    @property
    def here(self) -> str:
        """The phase of a record that this thread makes now, in forward or in backward."""
        return self.own.thread.phase if graph_task() == -1 else self.in_backward()

    def in_backward(self) -> str:
        """Return the phase of a record that this thread makes now, inside a backward.

        If this thread has entered a phase inside the backward, that phase is returned. Otherwise it
        is the phase of the backward's first gradient, or, before any gradient came, the phase of
        the thread that called the backward.
        """
        own, task = self.own.thread, graph_task()
        if own.since == task:
            return own.phase
        return self._backwards.get(task) or self._caller(own).phase

    def gradient(self, phase: str) -> None:
        """Note that a gradient arrived whose forward had `phase`.

        The phase of a backward's first gradient is kept, since it becomes the phase of other
        records made inside that backward. Outside of a backward nothing is noted.
        """
        task = graph_task()
        if task != -1 and task not in self._backwards:
            if len(self._backwards) >= _REMEMBERED:
                self._backwards = {}
            self._backwards[task] = phase

    def _entering(self) -> _Thread:
        thread = self.own.thread
        # torch passes this on to the threads that run a backward which this thread calls.
        pass_on(_KEY, thread)
        return thread

    def _caller(self, own: _Thread) -> _Thread:
        """Return the phases of the thread that called the running backward.

        own: the phases of this thread, returned where the calling thread is not known.
        """
        caller = passed_on(_KEY) if is_passed_on(_KEY) else None
        return caller if isinstance(caller, _Thread) and caller.owner is self else own
