"""`anchor`, the function by which a program records a tensor where it is computed.

While no session is active an anchor reads one module global and returns, in about 20 ns. If
`ANCHOR_RUN` is set, the first anchor starts the session.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from anchorlib.capture import compiled
from anchorlib.capture.dynamo_marks import skip_frames
from anchorlib.capture.eager import Observer
from anchorlib.capture.recording import NEW, REACHED, NameStreams, Stream
from anchorlib.capture.tensors import stands_for_a_tensor
from anchorlib.errors import NotATensorError
from anchorlib.modes import Mode, ModeSpec, parse_modes
from anchorlib.names import check_name
from anchorlib.scope import ANYTHING, Scope

__all__ = [
    "Anchors",
    "activate",
    "anchor",
    "arm",
    "deactivate",
    "paused",
    "recording",
]

# The only global that an anchor reads while no session is active.
_active = False
_anchors: Anchors | None = None
_start: Callable[[], None] | None = None


@skip_frames
def anchor(
    x: torch.Tensor, name: str, mode: ModeSpec | None = None, *, grad: bool = True
) -> torch.Tensor:
    """Record `x` now under `name`, and its gradient when backward reaches it; returns `x` itself.

    x: any tensor; its values, dtype and graph are not changed. The return value may be ignored.
    name: a non-empty str of at most 1,024 bytes in UTF-8.
    mode: which observations to keep (`All`, `Sum`, `Final`, `EveryN(n)`, `Summary`, their texts, or
        a list of several of them); None: the session's mode.
    grad: False records only the value.

    The recorded gradient includes changes by hooks that were registered on `x` before this call,
    not by hooks registered later. The gradient carries the coordinates of this call.

    Raises NotATensorError (a TypeError), InvalidNameError or ModeError for a wrong argument, and
    UnsupportedError for a tensor that an anchor would record wrongly. While no session is active,
    the call does nothing, and checks nothing.
    """
    if not _active:
        return x
    if torch.compiler.is_compiling():
        compiled.anchor_compiled(x, name, mode, grad=grad)
        return x
    if _anchors is None and _start is not None:
        _start()
    if _anchors is not None:
        _anchors.take(x, name, mode, grad=grad)
    return x


class Anchors:
    """Handles the calls of `anchor` for one session: finds the plan of each name and mode.

    A plan is what is recorded of a name.

    modes: the modes of anchors that are given none. wanted: returns whether the session's selectors
        select a name and kind. scope: the phases and steps that are recorded.
    """

    def __init__(
        self,
        observer: Observer,
        modes: tuple[Mode, ...],
        wanted: Callable[[str, str], bool],
        scope: Scope,
    ) -> None:
        self._observer = observer
        self._modes = modes
        self._wanted = wanted
        self._scope = scope
        self._limited = scope != ANYTHING
        self._names: set[str] = set()
        self._default: dict[str, NameStreams] = {}  # plans of anchors that are given no mode
        self._plans: dict[tuple[str, object], NameStreams] = {}
        self._of_modes: dict[tuple[str, tuple[Mode, ...]], NameStreams] = {}
        self.compiled = compiled.CompiledObserver(observer, self._compiled_plan)

    def take(self, x: Any, name: str, mode: ModeSpec | None, *, grad: bool) -> None:
        """Observe `x` under `name` now, and hook its gradient if `grad` is true.

        A proxy, which stands for a tensor while torch.fx traces, is counted as skipped.
        x, name, mode, grad: as given to `anchor`.
        Raises NotATensorError, InvalidNameError or ModeError for a wrong argument, UnsupportedError
        for a tensor that an anchor cannot record.
        """
        if type(x) is not torch.Tensor and not isinstance(x, torch.Tensor):
            if stands_for_a_tensor(x):
                self._observer.recorder.skip(name, "value", "tracing", self._observer.clock.step)
                return
            raise NotATensorError(compiled.not_a_tensor(f"anchor({name!r})", type(x).__name__))
        plan = (self._default.get(name) if mode is None else None) or self._plan_of(name, mode)
        if not (self._limited and self._records_nothing(plan)):
            self._observer.value(plan, x, grad=grad)

    def knows(self, name: str) -> bool:
        """Return whether the program has called an anchor of this name so far."""
        return name in self._names

    def found_plan(self, name: str) -> NameStreams:
        """Return the plan of a tensor that is recorded as `name` without an anchor: the loss.

        It is the plan that an anchor `name` without a mode has.
        """
        return self._of_modes.get((name, self._modes)) or self._plan(name, None)

    def _records_nothing(self, plan: NameStreams) -> bool:
        """Return whether this use of a name can be skipped, neither recorded nor counted.

        It can be skipped if the session's phases and steps leave it out. But the first use of a
        name, and its first use with gradients, are never skipped: they decide how later uses of the
        name are counted (see `eager.forwards`).
        plan: what is recorded of the name.
        """
        if plan.use == NEW or (plan.use < REACHED and torch.is_grad_enabled()):
            return False
        clock = self._observer.clock
        return self._scope.records_nothing(clock.step, clock.phase)

    def _plan_of(self, name: str, mode: ModeSpec | None) -> NameStreams:
        """Return the plan of an anchor that the program calls, and note that `name` was called.

        name, mode: as given to `anchor`. Raises InvalidNameError or ModeError for wrong ones.
        """
        given = tuple(mode) if type(mode) is list else mode
        plan = self._plans.get((name, given))
        if plan is None:
            self._names.add(name)
            plan = self._plans[name, given] = self._plan(name, given)
            if given is None:
                self._default[name] = plan
        return plan

    def _plan(self, name: str, mode: ModeSpec | None) -> NameStreams:
        name = check_name(name)
        modes = self._modes if mode is None else parse_modes(mode)
        plan = self._of_modes.get((name, modes))
        if plan is None:
            plan = self._of_modes[name, modes] = self._new_plan(name, modes)
        return plan

    def _new_plan(self, name: str, modes: tuple[Mode, ...]) -> NameStreams:
        recorder, scope = self._observer.recorder, self._scope

        def make(kind: str, phase: str) -> tuple[Stream, ...]:
            wanted = scope.has_phase(phase) and self._wanted(name, kind)
            some = modes if wanted else ()
            return recorder.streams(name, kind, [(mode, scope.steps) for mode in some], phase)

        return NameStreams(name, make, lambda: modes)

    def _compiled_plan(self, name: str, modes: str) -> NameStreams | None:
        """Return the plan of an anchor or watched tensor in compiled code.

        The name of an anchor is noted as called. None is returned for a watched tensor without a
        name, or of an unknown watched model.

        modes: the texts of the anchor's modes joined by commas, "" for the session's modes, or
            `watch:N` for a tensor of the watched model number N.
        """
        kind, _, number = modes.partition(":")
        if kind != "watch":
            self._names.add(name)
            return self._plan(name, modes.split(",") if modes else None)
        watched = self.compiled.watched.get(int(number))
        return watched.plan(name) if watched is not None and name else None


def activate(anchors: Anchors) -> None:
    """Have `anchors` handle the calls of `anchor` from now on."""
    global _active, _anchors  # noqa: PLW0603  # read at every anchor: a module global is fastest
    _anchors = anchors
    _active = True


def deactivate() -> None:
    """Have `anchor` do nothing from now on."""
    global _active, _anchors, _start  # noqa: PLW0603
    _active = False
    _anchors = _start = None


def arm(start: Callable[[], None]) -> None:
    """Have the first call of `anchor` call `start`, which is meant to activate a session."""
    global _active, _start  # noqa: PLW0603
    _start = start
    _active = True


def recording() -> bool:
    """Return whether `anchor` does anything now.

    dynamo guards on the result when it traces a call of this function: if the result changes, the
    code is compiled anew.
    """
    return _active


@contextmanager
def paused() -> Iterator[None]:
    """Return a context manager in which `anchor` does nothing in the whole process.

    It serves to try out a model unrecorded.
    """
    global _active  # noqa: PLW0603
    was, _active = _active, False
    try:
        yield
    finally:
        _active = was


def _compiled_observer() -> compiled.CompiledObserver | None:
    if _active and _anchors is None and _start is not None:
        _start()
    return None if _anchors is None else _anchors.compiled


compiled.connect(_compiled_observer)

# A DataLoader worker that the training process forked must not write into the ring it shares.
os.register_at_fork(after_in_child=deactivate)
