"""SessionTraces: starts, replaces and ends the traces of operations of one session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from anchorlib.capture.counting import Clock
from anchorlib.capture.naming import NamedMembers
from anchorlib.capture.recording import Recorder
from anchorlib.capture.tracing.request import Digests, TraceSteps, check_digests, trace_steps
from anchorlib.capture.tracing.trace_cache import TraceCache
from anchorlib.capture.tracing.tracer import Tracer
from anchorlib.capture.tracing.value_recorder import ValueRecorder
from anchorlib.capture.tracing.value_selection import WantedValues, check_values
from anchorlib.names import Selector
from anchorlib.operations import Entry
from anchorlib.torch_private import AffectedPrograms, tell_moved

__all__ = ["SessionTraces"]


class SessionTraces:
    """The traces of one session, one at a time. Only `ask` raises, never a call inside training.

    parts: a function that returns the named modules and parameters of each watched model.
    """

    def __init__(
        self, clock: Clock, recorder: Recorder, parts: Callable[[], Iterable[NamedMembers]]
    ) -> None:
        self._clock = clock
        self._recorder = recorder
        self._parts = parts
        self._tracer: Tracer | None = None
        self._cache = TraceCache()

    def ask(
        self,
        steps: TraceSteps,
        digests: object = "both",
        *,
        compiled: bool = True,
        values: object = (),
    ) -> None:
        """Trace the operations of `steps`, in place of a trace under way.

        The options are those that a user gives to `session.trace`. Raises OptionError, and leaves a
        trace under way as it is, if one of them is not allowed.
        """
        selectors = check_values(values)
        clock = self._clock
        upcoming = clock.step if clock.is_at_boundary else clock.step + 1
        request = trace_steps(steps, upcoming), check_digests(digests)
        self.begin(*request, compiled=compiled, values=selectors)

    def begin(
        self,
        steps: range,
        digests: Digests = "both",
        *,
        compiled: bool = True,
        midway: bool = False,
        values: Sequence[Selector] = (),
    ) -> None:
        """Trace `steps`, which the caller has checked, in place of a trace under way.

        digests: "both", "outputs" or "none". compiled: whether graphs of compiled code are read.
        midway: whether the open step has begun already, though the clock has counted nothing in it;
        a step that has begun is not traced, but noted as a gap. values: select the operations whose
        tensors are recorded.
        """
        self.close()
        tell_moved(AffectedPrograms.TRACED)
        say, missed = self._say, self._recorder.miss_operations
        keep = self._value_recorder(values) if values else None
        cache = self._cache
        tracer = Tracer(steps, digests, say, missed, compiled=compiled, keep=keep, cache=cache)
        for parts in self._parts():
            tracer.know(parts)
        self._tracer = tracer
        midway = midway or not self._clock.is_at_boundary
        tracer.begin(self._clock.step, midway=midway)

    def _value_recorder(
        self, values: Sequence[Selector]
    ) -> Callable[[Callable[[str], None]], ValueRecorder]:
        return lambda on_gap: ValueRecorder(
            WantedValues(values), self._recorder, self._clock, on_gap
        )

    def know(self) -> None:
        """Tell the trace under way the module names of all watched models, as a model was added."""
        if self._tracer is not None:
            for parts in self._parts():
                self._tracer.know(parts)

    def end_step(self, upcoming: int | None) -> None:
        """Tell the trace that a step has ended and step `upcoming` begins (None: none begins)."""
        tracer = self._tracer
        if tracer is not None:
            tracer.end_step(upcoming)
            if tracer.is_done:
                self._tracer = None

    def close(self) -> None:
        """End the trace under way, and give the operations that it has seen to the recorder."""
        self.end_step(None)
        self._tracer = None

    def silence(self) -> None:
        """Trace nothing more, because this process was forked from the process that traces."""
        if self._tracer is not None:
            self._tracer.silence()

    def _say(self, entries: list[Entry]) -> None:
        self._recorder.operations(entries)
