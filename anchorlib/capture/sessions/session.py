"""The session: the object that `start` returns, and that users keep while they record.

settings ─▶ Session ┬ Clock, Recorder, Observer    called by anchors and hooks
                    ├ Watches                       hooks on models and optimizers
                    └ RecordQueue ─▶ Sink           where records go
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import nn

from anchorlib.capture.compiled import TracedPhase
from anchorlib.capture.counting import CallCoordinates, Clock
from anchorlib.capture.eager import Graft, Observer
from anchorlib.capture.headers import autocast
from anchorlib.capture.inline import hooks
from anchorlib.capture.naming import WatchArguments
from anchorlib.capture.recording import Recorder, StepBytes
from anchorlib.capture.sessions.counters import Counters, counters_of
from anchorlib.capture.sessions.ending import Ending
from anchorlib.capture.sessions.progress import closing_progress
from anchorlib.capture.sessions.settings import Settings
from anchorlib.capture.sessions.watching import Watches
from anchorlib.capture.tracing import Digests, SessionTraces, TraceSteps
from anchorlib.errors import AnchorError, OptionError, SessionError
from anchorlib.modes import ModeSpec, parse_modes
from anchorlib.names import check_name
from anchorlib.record import TensorInfo
from anchorlib.recorder import RecordQueue
from anchorlib.scope import PhasesSpec, StepsSpec, scope

if TYPE_CHECKING:
    from anchorlib.reading import Run

__all__ = ["Session"]

_log = logging.getLogger("anchorlib")


class Session:
    """The recording of one run in this process, as `anchorlib.start` returns it.

    It is a context manager, which closes the session at its end. After `close`, the methods
    `watch`, `step`, `trace` and `flush` raise SessionError. In a process that was forked from the
    one that records, `step`, `trace`, `flush` and `close` do nothing.
    """

    def __init__(
        self,
        settings: Settings,
        queue: RecordQueue,
        on_closing: Callable[[Session], None],
        *,
        aloud: bool,
    ) -> None:
        self._on_closing = on_closing
        self._settings = settings
        self._pid = os.getpid()
        self._queue = queue
        self._recorder = Recorder(self._queue)
        self._clock = Clock(
            settings.first_step,
            on_pass=self._on_pass,
            on_step=self._on_step,
            label=self._label,
        )
        self._observer = Observer(self._clock, self._recorder)
        self._anchors = hooks.Anchors(
            self._observer, settings.modes, settings.wants, settings.scope
        )
        self._watches = Watches(settings, self._observer, self._anchors.compiled.watched)
        self._weighing = StepBytes(settings.run, settings.rank, aloud=aloud)
        self._traces = SessionTraces(self._clock, self._recorder, lambda: self._watches.parts)
        self._ending = Ending(settings, self._clock, self._recorder, queue, self._watches, aloud)
        self._closed = False

    # -- identity

    @property
    def run(self) -> str:
        """The run's name."""
        return self._settings.run

    @property
    def store(self) -> str:
        """Where the run is stored: a directory, or a collector's URL."""
        return self._settings.store

    @property
    def rank(self) -> int:
        """The rank that this session records."""
        return self._settings.rank

    @property
    def current_step(self) -> int:
        """The number of the step that is open."""
        return self._clock.step

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"step {self._clock.step}"
        return f"<anchorlib.Session {self.run!r} rank {self.rank} in {self.store}: {state}>"

    # -- observing

    def watch(  # noqa: PLR0913  # the contract's arguments
        self,
        model: nn.Module,
        *,
        tensors: Sequence[str] | str | None = None,
        mode: ModeSpec | None = None,
        phases: PhasesSpec | None = None,
        steps: StepsSpec | None = None,
        optimizer: object = None,
        prefix: str = "",
    ) -> None:
        """Record tensors of `model` by name, from now on, without editing the model.

        tensors: selectors (`fc1`, `fc2.bias@grad`, `*@delta`, `re:fc[12]@grad`, PopTorch's
            spellings); None: every module output with its gradient, and every parameter's `grad`
            (`pass_grad` without an optimizer); "*": every tensor in every kind.
        mode: which observations to keep; None: the session's mode. Watching a model again adds
            tensors and modes.
        phases: the phases that are recorded: ("train",) leaves out evaluation and phases with other
            names; None: the session's phases. steps: the steps that are recorded: a number,
            range(0, 3), or a list of them; None: the session's steps. Phases and steps that the
            session leaves out are left out here too.
        optimizer: the optimizer whose steps give `grad`, `updated`, `delta` and `opt.KEY`, and end
            the session's steps. Wrappers (SAM, Accelerate) are unwrapped. Give several optimizers
            as a list, in the order in which they step: the last ends the session's steps, until
            another one steps alone.
        prefix: put before every name, with a dot; needed where another watched model records
            tensors of the same names. Selectors may leave the prefix out.

        Raises UnknownTensorError for a selector that can match nothing, ModeError or OptionError
        for a wrong argument; then nothing is watched.
        """
        self._must_be_open()
        if not isinstance(model, nn.Module):
            raise OptionError(f"watch takes a torch.nn.Module, not {type(model).__name__}")
        modes = self._settings.modes if mode is None else parse_modes(mode)
        selectors = [tensors] if isinstance(tensors, str) else tensors
        here = scope(phases, steps).within(self._settings.scope)
        self._watches.add(model, WatchArguments(selectors, modes, here), optimizer, prefix)
        self._traces.know()

    def step(self, number: int | None = None) -> None:
        """End the open step, and begin the next one.

        From the first call on, steps end only by this method, no longer when the optimizer steps.
        If the optimizer has just ended a step, the first call ends no further step.

        number: the number of the next step; None: one more than that of the open step.

        Raises OptionError for a `number` that no step can have, ModeError for a Sum window in which
        shapes differed, and QueueFullError under on_full="raise" if the queue was full.
        """
        if self._is_forked:
            return
        self._must_be_open()
        self._clock.end_step(number)
        self._check()

    def trace(
        self,
        steps: TraceSteps = 2,
        *,
        digests: Digests = "both",
        compiled: bool = True,
        values: Sequence[str] = (),
    ) -> None:
        """Trace the operations of some steps: each operation with its inputs and outputs.

        The call returns at once; the trace runs as those steps come.

        steps: how many steps, from the next step that begins (or from the open step, if nothing was
            observed in it yet); or the numbers of the steps, such as range(0, 2).
        digests: record digests of each operation's inputs and outputs ("both"), of its outputs
            ("outputs"), or of nothing ("none").
        compiled: whether to read the graphs of code that torch.compile compiles from here on, and
            to state a gap for graphs that cannot be read, such as graphs compiled before.
        values: selectors of operations whose inputs and outputs are recorded whole: names of
            operations (`aten.tanh_backward`, `tanh_backward`), modules (`fc1`, `encoder.*`), both
            (`fc1/tanh_backward`), or `re:` and a regular expression; `*` for all. A kind limits a
            selector to some inputs or outputs: `aten.mm@op.out`. The records are called
            `MODULE/OPERATION`, their kinds `op.in.ARGUMENT` and `op.out`.

        `Run.ops` and `anchor ops` read the operations. A trace that is under way is replaced.

        Raises OptionError for a wrong argument.
        """
        if self._is_forked:
            return
        self._must_be_open()
        if self._settings.recording:
            self._traces.ask(steps, digests, compiled=compiled, values=values)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager: records made inside carry the phase `name`.

        Outside, the phase is "train", or that of a watched model's forward. The phase `name` holds
        in the thread that enters the context. A gradient carries the phase of its forward. Raises
        InvalidNameError for a name that a tensor could not have.
        """
        if torch.compiler.is_compiling():
            return TracedPhase(name)
        return self._clock.in_phase(check_name(name))

    def _label(self, optimizer: object) -> str:
        return self._watches.name_of(optimizer)

    def _on_pass(self, at: CallCoordinates) -> None:
        dtype = autocast()
        if dtype is not None:
            self._recorder.header("amp.autocast", dtype)
        self._watches.on_pass(at)

    def _on_step(self, upcoming: int) -> None:
        self._traces.end_step(upcoming)
        self._anchors.compiled.end_step(upcoming)
        self._recorder.end_step(upcoming)
        self._observer.forget_calls()
        self._recorder.header("steps.ended_by", self._clock.step_enders.ender)
        if not self._weighing.knows(self._recorder.phases):
            self._weighing.tell(self._recorder.weights())

    @contextmanager
    def grafting(self, run: Run, steps: StepsSpec | None = None) -> Iterator[None]:
        """Return a context manager in which values at anchors are replaced by those of `run`.

        It does the work of `anchorlib.graft`.
        steps: the steps in which values are replaced; None: all steps.
        Raises what `begin_graft` raises.
        """
        self.begin_graft(run, steps)
        try:
            yield
        finally:
            self._end_graft()

    def begin_graft(self, run: Run, steps: StepsSpec | None = None) -> None:
        """Replace the values at every anchor by those of `run`, until `_end_graft` is called.

        steps: the steps in which values are replaced; None: all steps.
        Raises SessionError if another run is grafted already, or `run` has the name of the
        session's own run; OptionError for impossible `steps`.
        """
        self._must_be_open()
        if self._observer.graft is not None:
            raise SessionError(
                f"run {self.run!r} is grafted with another run's values already: end that `with "
                "anchorlib.graft(...)` block first"
            )
        if run.name == self.run:
            raise SessionError(
                f"run {self.run!r} cannot be grafted with its own values: give graft another run"
            )
        graft = Graft(run, self.rank, scope(None, steps).steps)
        graft.begin(self._recorder.header)
        self._observer.graft = graft

    def _end_graft(self) -> None:
        """Stop replacing values, and note in the header how many were replaced.

        Does nothing where no run is grafted.
        """
        graft, self._observer.graft = self._observer.graft, None
        if graft is not None:
            graft.end(self._recorder.header)

    # -- reading back

    def tensors(self) -> list[TensorInfo]:
        """Return an overview of each tensor recorded so far, in the order of first records."""
        return self._recorder.tensors(self.rank)

    def latest(self, name: str, kind: str = "value") -> np.ndarray[Any, Any]:
        """Return the array of this tensor's last record, as a copy that the caller may change.

        The array is read back from the store, after a `flush`, so that the session need not keep it
        in memory.

        Raises UnknownTensorError if nothing of this name and kind was recorded, ValuesNotKeptError
        if the last record is only a summary, and CollectorError if a collector does not answer.
        """
        from anchorlib.reading import open_run  # the store is loaded where it is read

        if not self._closed:
            self.flush()
        run = open_run(self.run, self.store)
        modes: list[str | None] = [
            one.mode for one in run.tensors() if (one.name, one.kind) == (name, kind)
        ]
        every = [run.series(name, kind, rank=self.rank, mode=mode) for mode in modes or [None]]
        lasts = [series.record(len(series) - 1) for series in every]
        return np.array(max(lasts, key=lambda record: record.order).array)

    @property
    def counters(self) -> Counters:
        """How much was recorded so far, and how much could not be recorded."""
        return counters_of(self._recorder, self._queue)

    # -- ending

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all records made before the call are in the store, visible to any reader.

        timeout: the most seconds to wait; None waits without end.

        Raises FlushTimeoutError if the records are not there after `timeout` seconds, ModeError for
        a Sum window in which shapes differed, and QueueFullError under on_full="raise" if the queue
        was full.
        """
        if self._is_forked:
            return
        self._must_be_open()
        self._anchors.compiled.settle()
        self._queue.flush(timeout)
        self._check()

    def close(self, timeout: float = 30) -> None:
        """Record windows that are still open, deliver all records, and close the run.

        A window is a number of steps that the modes Sum and Final fold into one record. The call
        waits until the records are delivered. A second call does nothing.

        timeout: the most seconds to wait for a collector. Records that it has not taken by then are
            counted in one warning.

        Raises, after everything is closed, ModeError for a Sum window in which shapes differed, and
        QueueFullError under on_full="raise" if the queue was full.
        """
        if self._closed or self._is_forked:
            return
        self._end_graft()
        self._closed = True
        self._on_closing(self)
        self._traces.close()
        self._anchors.compiled.end_step(None)
        self._recorder.end_step(None)
        self._observer.close()
        self._watches.close()
        with closing_progress(self._queue):
            undelivered = self._queue.close(timeout)
        self._ending.tell(undelivered)
        self._check()

    def _check(self) -> None:
        self._recorder.check()
        self._queue.records.check()

    @property
    def _is_forked(self) -> bool:
        """Whether this process was forked from the process that opened the session.

        The methods `step`, `trace`, `flush` and `close` then do nothing here.
        """
        return os.getpid() != self._pid

    def _must_be_open(self) -> None:
        if self._closed:
            raise SessionError(f"the session of run {self.run!r} is closed; start another")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except AnchorError as ours:
            if kind is None:
                raise
            # The user's own exception must not be replaced by ours.
            _log.warning("anchorlib: %s", ours)
