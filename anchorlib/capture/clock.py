"""Where in a run an observation is made: step, pass, call and phase, counted without help.

    step        ends when the clock's optimizer has stepped, or at `session.step()`
    pass_index  n-th forward+backward inside a step: a forward observation that comes after a
                gradient opens the next one; without gradients, so does each further forward of
                a watched root
    call        n-th use of a name inside the pass
    phase       "train", what `session.phase` says, or "eval" inside a watched root's eval forward

Passes and calls are counted for each phase apart, so that validating in the middle of a step does
not renumber the training around it. No torch here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import ref

from anchorlib.errors import OptionError

__all__ = ["At", "Clock"]

TRAIN, EVAL = "train", "eval"


class At(NamedTuple):
    """Coordinates as they are known while recording (the rank and attempt are the writer's)."""

    step: int
    pass_index: int
    call: int
    phase: str


_tuple = tuple.__new__


class _Passes:
    """The passes of one phase inside the current step."""

    __slots__ = ("calls", "gradient_seen", "index", "ready", "roots", "started")

    def __init__(self) -> None:
        self.index = 0
        self.started = False
        self.gradient_seen = False
        self.ready = False  # a hook that will see this pass's gradient is in place
        self.calls: dict[Hashable, int] = {}
        self.roots: set[int] = set()

    def next(self) -> None:
        self.index += 1
        self.gradient_seen = self.ready = False
        self.calls.clear()
        self.roots.clear()


class Clock:
    """Counts for one session; `on_pass` hears of each pass that begins, `on_step` of each end."""

    def __init__(
        self,
        first_step: int = 0,
        *,
        on_pass: Callable[[At], None] = lambda _at: None,
        on_step: Callable[[int], None] = lambda _step: None,
    ) -> None:
        self.step = first_step
        self._on_pass = on_pass
        self._on_step = on_step
        self._lock = threading.RLock()
        self._passes: dict[str, _Passes] = {}
        self._phases: list[str] = []
        self._eval_roots = 0
        self._optimizer: Callable[[], Any] | None = None
        self._explicit = False
        self._ended_by_optimizer = False

    # -- phase

    @property
    def phase(self) -> str:
        """The phase that a record made now carries."""
        if self._phases:
            return self._phases[-1]
        return EVAL if self._eval_roots else TRAIN

    @contextmanager
    def in_phase(self, name: str) -> Iterator[None]:
        """Records made inside carry the phase `name`."""
        self._phases.append(name)
        try:
            yield
        finally:
            self._phases.pop()

    # -- pass and call

    def enter_root(self, root: int, *, training: bool, gradients: bool) -> None:
        """The forward of a watched root begins."""
        with self._lock:
            if not training:
                self._eval_roots += 1
            passes = self._current()
            # A forward that no gradient will follow is a pass of its own.
            if root in passes.roots and not (gradients and training):
                passes.next()
                passes.started = False
            self._open(passes)
            passes.roots.add(root)

    def leave_root(self, *, training: bool) -> None:
        """The forward of a watched root has ended."""
        if not training:
            with self._lock:
                self._eval_roots = max(0, self._eval_roots - 1)

    def call(self, name: Hashable, *, backward: bool = False) -> At:
        """An observation of `name`: its coordinates. One made inside backward opens no pass."""
        return self.count((name,), backward=backward)

    def count(self, counters: tuple[Hashable, ...], *, backward: bool = False) -> At:
        """The same of what has several counters, all of which it advances alike."""
        with self._lock:
            phase = self.phase if self._phases or self._eval_roots else TRAIN
            passes = self._passes.get(phase) or self._current()
            if not passes.started or (passes.gradient_seen and not backward):
                self._open(passes)
            calls = passes.calls
            if len(counters) == 1:
                counter = counters[0]
                n = calls.get(counter, 0)
                calls[counter] = n + 1
            else:
                n = max(calls.get(counter, 0) for counter in counters)
                calls.update(dict.fromkeys(counters, n + 1))
            # A NamedTuple's own constructor costs as much as all the rest.
            return _tuple(At, (self.step, passes.index, n, phase))

    def now(self) -> At:
        """The coordinates of something that is no call: the current pass, call 0."""
        with self._lock:
            return At(self.step, self._current().index, 0, self.phase)

    def wants_gradient_hook(self) -> bool:
        """Whether the current pass still needs a hook that will see its gradient; asks once."""
        passes = self._current()
        ready, passes.ready = passes.ready, True
        return not ready

    def gradient(self, at: At | None = None) -> None:
        """A gradient arrived (of the forward call made at `at`)."""
        self._ended_by_optimizer = False
        if at is not None and at.step != self.step:
            return  # a late backward says nothing about the step that is open now
        passes = self._passes.get(at.phase if at is not None else self.phase)
        if passes is not None and passes.started:
            passes.gradient_seen = True

    def _current(self) -> _Passes:
        passes = self._passes.get(self.phase)
        if passes is None:
            passes = self._passes[self.phase] = _Passes()
        return passes

    def _open(self, passes: _Passes) -> None:
        if passes.started and not passes.gradient_seen:
            return
        if passes.started:
            passes.next()
        passes.started = True
        self._on_pass(At(self.step, passes.index, 0, self.phase))

    # -- step

    def bind(self, optimizer: object) -> None:
        """Let `optimizer` be the clock, unless another already is."""
        if self._optimizer is None:
            self._optimizer = ref(optimizer)

    def optimizer_stepped(self, optimizer: object) -> None:
        """An optimizer's step has completed. The first to do so becomes the clock."""
        self.bind(optimizer)
        if self._explicit or self._optimizer is None or self._optimizer() is not optimizer:
            return
        self._end(self.step + 1)
        self._ended_by_optimizer = True

    def end_step(self, number: object = None) -> None:
        """End the step by hand; from now on only this does.

        The first time it ends the step that the optimizer has just ended, not another.
        Raises OptionError for a number that no step can have.
        """
        if not isinstance(number, int | None) or (number is not None and number < 0):
            raise OptionError(f"a step is a whole number from 0 on, not {number!r}")
        ended_already = self._ended_by_optimizer and not self._explicit
        self._explicit = True
        self._ended_by_optimizer = False
        upcoming = self.step if ended_already else self.step + 1
        self._end(upcoming if number is None else number)

    def _end(self, upcoming: int) -> None:
        with self._lock:
            self.step = upcoming
            self._passes.clear()
        self._on_step(upcoming)
