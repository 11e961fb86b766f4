"""The session: what `start` opens, and what users hold while they record.

settings ─▶ Session ┬ Clock, Recorder, Observer    what anchors and hooks talk to
                    ├ Watches                       hooks on models and optimizers
                    └ RecordQueue ─▶ Sink           where records go
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import nn

from anchorlib.capture.compiled import TracedPhase
from anchorlib.capture.counting import At, Clock
from anchorlib.capture.eager import Graft, Observer
from anchorlib.capture.headers import autocast
from anchorlib.capture.inline import hooks
from anchorlib.capture.naming import Asked
from anchorlib.capture.recording import Recorder, Weighing, size_text, tell
from anchorlib.capture.sessions.progress import closing_progress
from anchorlib.capture.sessions.settings import Settings
from anchorlib.capture.sessions.watching import Watches
from anchorlib.capture.tracing import Digests, Traces, TraceSteps
from anchorlib.errors import AnchorError, OptionError, SessionError
from anchorlib.modes import ModeSpec, parse_modes
from anchorlib.names import check_name, quoted
from anchorlib.record import TensorInfo
from anchorlib.recorder import RecordQueue
from anchorlib.scope import ANYTHING, TRAIN, PhasesSpec, StepsSpec, scope

if TYPE_CHECKING:
    from anchorlib.reading import Run

__all__ = ["Counters", "Session", "leaves_out", "sharing_names"]

_log = logging.getLogger("anchorlib")


@dataclass(frozen=True, slots=True)
class Counters:
    """What a session recorded, and what it did not.

    records, bytes: what was recorded until now and is not lost; a flush brings it into the store.
    dropped: records that were lost or kept without their values.
    gaps: series that have a stored gap, each reason counted for itself.
    skipped: observations that could not be recorded, by reason.
    retries: how often delivery was tried again.
    """

    records: int = 0
    bytes: int = 0
    dropped: int = 0
    gaps: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    retries: int = 0


class Session:
    """The recording of one run in this process. Made by `anchorlib.start`; a context manager."""

    def __init__(
        self,
        settings: Settings,
        queue: RecordQueue,
        on_closing: Callable[[Session], None],
        *,
        aloud: bool,
    ) -> None:
        self._on_closing = on_closing
        self._aloud = aloud
        self._tells_end = True
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
        self._weighing = Weighing(settings.run, settings.rank, aloud=aloud)
        self._traces = Traces(self._clock, self._recorder, lambda: self._watches.parts)
        self._closed = False

    # -- what it is

    @property
    def run(self) -> str:
        """The run's name."""
        return self._settings.run

    @property
    def store(self) -> str:
        """Where the run lives: a directory or a collector's URL."""
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
        """Anchor tensors of `model` by name, without editing it.

        tensors: selectors (`fc1`, `fc2.bias@grad`, `*@delta`, `re:fc[12]@grad`, PopTorch's
            spellings); None: every module output with its gradient, and every parameter's `grad`
            (with an optimizer; else `pass_grad`); "*": everything there is.
        mode: what to keep; None: the session's. Watching again adds modes.
        phases: ("train",) records the training alone, and neither evaluation nor what carries
            another name; None: the session's. steps: the steps that are recorded: a number,
            range(0, 3), or a list of them; None: the session's. What the session leaves out is
            left out here too.
        optimizer: whose steps give `grad`, `updated`, `delta` and `opt.KEY`, and count steps.
            A wrapper (SAM, Accelerate) is looked through. Of several, in a list in the order in
            which they step, the last one counts the steps, until another one steps alone.
        prefix: put before every name, with a dot; needed where another watched model records
            tensors of the same names. Selectors may leave it out.

        Raises UnknownTensorError, ModeError, OptionError: nothing is registered then.
        """
        self._must_be_open()
        if not isinstance(model, nn.Module):
            raise OptionError(f"watch takes a torch.nn.Module, not {type(model).__name__}")
        modes = self._settings.modes if mode is None else parse_modes(mode)
        selectors = [tensors] if isinstance(tensors, str) else tensors
        here = scope(phases, steps).within(self._settings.scope)
        self._watches.add(model, Asked(selectors, modes, here), optimizer, prefix)
        self._traces.know()

    def step(self, number: int | None = None) -> None:
        """End the step; the next one is `number`, or the one after.

        From the first call on steps end here alone, no longer at the optimizer's; that call ends
        the step that the optimizer has just ended, not another.

        Raises ModeError for a Sum window in which shapes differed, QueueFullError under
        on_full="raise".
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
        """Trace the operations of some steps: what ran, on what, and what it made.

        steps: how many, from the next step that begins (the one that is open, where nothing of it
            was seen); or the steps themselves, as range(0, 2).
        digests: of what each operation took and made ("both"), of what it made ("outputs"), or
            "none".
        compiled: whether to read the graphs of code that torch.compile makes from here on, and
            to state a gap for what cannot be read, as code that it has made before.
        values: not supported yet: anything but () is an OptionError.

        They are read by `Run.ops` and `anchor ops`. A trace that is under way is replaced.

        Raises OptionError.
        """
        if self._is_forked:
            return
        self._must_be_open()
        if values:
            raise OptionError("trace(values=) keeps no values yet: leave it out, or record them")
        if self._settings.recording:
            self._traces.ask(steps, digests, compiled=compiled)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A context: records made inside carry the phase `name` (default: "train").

        It belongs to the thread that enters it; a gradient carries the phase of its forward.

        Raises InvalidNameError for a name that a tensor could not have either.
        """
        if torch.compiler.is_compiling():
            return TracedPhase(name)
        return self._clock.in_phase(check_name(name))

    def _label(self, optimizer: object) -> str:
        return self._watches.name_of(optimizer)

    def _on_pass(self, at: At) -> None:
        dtype = autocast()
        if dtype is not None:
            self._recorder.header("amp.autocast", dtype)
        self._watches.on_pass(at)

    def _on_step(self, upcoming: int) -> None:
        self._traces.end_step(upcoming)
        self._anchors.compiled.end_step(upcoming)
        self._recorder.end_step(upcoming)
        self._observer.forget_calls()
        self._recorder.header("steps.ended_by", self._clock.turns.ender)
        if not self._weighing.knows(self._recorder.phases):
            self._weighing.tell(self._recorder.weights())

    @contextmanager
    def grafting(self, run: Run, steps: StepsSpec | None = None) -> Iterator[None]:
        """Hand every anchor the values of `run`; see `anchorlib.graft`, which calls this."""
        self.begin_graft(run, steps)
        try:
            yield
        finally:
            self._end_graft()

    def begin_graft(self, run: Run, steps: StepsSpec | None = None) -> None:
        """Hand every anchor the values of `run` from now on."""
        self._must_be_open()
        if self._observer.graft is not None:
            raise SessionError(f"run {self.run!r} is handed the values of another run already")
        if run.name == self.run:
            raise SessionError(f"run {self.run!r} cannot go on with its own values")
        graft = Graft(run, self.rank, scope(None, steps).steps)
        graft.begin(self._recorder.header)
        self._observer.graft = graft

    def _end_graft(self) -> None:
        """Hand over no more, and tell what was; once, wherever the session is closed."""
        graft, self._observer.graft = self._observer.graft, None
        if graft is not None:
            graft.end(self._recorder.header)

    # -- reading back

    def tensors(self) -> list[TensorInfo]:
        """What was recorded so far, in execution order."""
        return self._recorder.tensors(self.rank)

    def latest(self, name: str, kind: str = "value") -> np.ndarray[Any, Any]:
        """The last array that the mode of this tensor emitted, the caller's own copy.

        It is read back from the store, so that nothing is kept in memory for it.

        Raises UnknownTensorError, ValuesNotKeptError (Summary), CollectorError.
        """
        from anchorlib.reading import open_run  # the store is loaded where it is read

        if not self._closed:
            self.flush()
        run = open_run(self.run, self.store)
        modes: list[str | None] = [
            one.mode for one in run.tensors() if (one.name, one.kind) == (name, kind)
        ]
        found = [run.series(name, kind, rank=self.rank, mode=mode) for mode in modes or [None]]
        lasts = [series.record(len(series) - 1) for series in found]
        return np.array(max(lasts, key=lambda record: record.order).array)

    @property
    def counters(self) -> Counters:
        """What was recorded so far, and what was not."""
        queue, recorder = self._queue, self._recorder
        records, nbytes = recorder.emitted
        return Counters(
            records - queue.lost,
            nbytes - queue.dropped_bytes,
            queue.dropped,
            queue.gaps,
            dict(recorder.skipped),
            queue.retries,
        )

    # -- ending

    def flush(self, timeout: float | None = None) -> None:
        """Return when all that was captured before is in the store and visible to any reader.

        Raises FlushTimeoutError after `timeout` seconds; ModeError and QueueFullError as `step`.
        """
        if self._is_forked:
            return
        self._must_be_open()
        self._anchors.compiled.settle()
        self._queue.flush(timeout)
        self._check()

    def close(self, timeout: float = 30) -> None:
        """Emit open windows, drain, close the run. Closing a closed session does nothing.

        What a collector has not taken within `timeout` seconds is counted in `counters` and told
        in one warning. Raises ModeError and QueueFullError as `step`, after everything is closed.
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
        self._report(undelivered)
        self._check()

    def _report(self, undelivered: int) -> None:
        if undelivered:
            _log.warning(
                "anchorlib: %d records of run %s did not reach %s",
                undelivered,
                self.run,
                self.store,
            )
        if self._settings.recording and self._tells_end:
            tell(
                "anchorlib: run %s, rank %d: %s",
                self.run,
                self.rank,
                self._counted(self.store, undelivered),
                level=logging.WARNING if self._left_all_out else logging.INFO,
                aloud=self._aloud,
            )
        if self._settings.perturbs is not None:
            self._settings.perturbs.close()
        missing = self._watches.missing + self._settings.unmatched
        if missing and not self._left_all_out:
            _log.warning("anchorlib: nothing ever matched %s", ", ".join(map(quoted, missing)))

    def _counted(self, store: str, undelivered: int = 0) -> str:
        """Steps and passes, which optimizer ends what, and what is in `store` or its spool."""
        counters, steps = self.counters, str(self._clock.turns)
        records = f"{counters.records:,} record{'' if counters.records == 1 else 's'}"
        dropped = f", {counters.dropped:,} dropped" if counters.dropped else ""
        kept = f"{records}, {size_text(counters.bytes)}, {self._place(store, undelivered)}{dropped}"
        why = ": nothing was of the phases and steps that were asked for"
        return f"{steps}; " * bool(steps) + kept + why * self._left_all_out

    def _place(self, store: str, undelivered: int) -> str:
        """Where the records are: what no collector has taken waits in the spool."""
        waiting = self._queue.waiting - undelivered
        if waiting <= 0:
            return f"in {store}"
        return f"of which {waiting:,} wait in the spool for {store}"

    @property
    def _left_all_out(self) -> bool:
        """Whether phases and steps were asked for of which nothing came."""
        return self._settings.scope != ANYTHING and not self.counters.records

    def _check(self) -> None:
        self._recorder.check()
        self._queue.check()

    @property
    def _is_forked(self) -> bool:
        """Whether this process was forked from the one that records, and has nothing to do."""
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
            # The user's own exception matters more than what we have to say at the end.
            _log.warning("anchorlib: %s", ours)


def leaves_out(session: Session, steps: range) -> bool:
    """Whether `session` leaves out some of these steps, or phases."""
    limits = session._settings.scope  # noqa: SLF001
    return limits.phases is not None or any(limits.rests(step, TRAIN) for step in steps)


@contextmanager
def sharing_names(session: Session) -> Iterator[None]:
    """Models that are watched inside may have names of others: their steps tell them apart."""
    watches = session._watches  # noqa: SLF001
    before, watches.shares_names = watches.shares_names, True
    try:
        yield
    finally:
        watches.shares_names = before
