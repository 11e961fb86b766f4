"""Tracer: traces the operations of some steps, from step boundary to step boundary.

The dispatch mode that intercepts operations is on torch's stack of modes only during traced steps,
so other steps cost nothing. At the end of each traced step the operations go to the recorder.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from anchorlib.capture.naming import NamedMembers
from anchorlib.capture.tracing.code_places import is_called_compiled
from anchorlib.capture.tracing.dispatch_mode import OpMode
from anchorlib.capture.tracing.graph_reader import GraphKey, GraphReader
from anchorlib.capture.tracing.inductor import InductorGraphs
from anchorlib.capture.tracing.module_names import ModuleNames
from anchorlib.capture.tracing.request import Digests
from anchorlib.capture.tracing.step_state import StepState
from anchorlib.capture.tracing.trace_cache import TraceCache
from anchorlib.capture.tracing.unseen_graphs import UnseenGraphs, signature
from anchorlib.capture.tracing.value_digests import Digester
from anchorlib.capture.tracing.value_recorder import ValueRecorder
from anchorlib.capture.tracing.values_mode import ValuesMode
from anchorlib.names import quoted
from anchorlib.operations import Entry, TracedOp, gap_entry
from anchorlib.torch_private import count_compiled, dispatch_mode_at, dispatch_modes

__all__ = ["Tracer"]

_log = logging.getLogger("anchorlib")

OTHER_MODE: Final = "operations of a step in which another dispatch mode was active"
MIDWAY: Final = "operations of a step that had begun when its trace was asked for"
WITHIN: Final = "operations of a step that began inside a compiled function"
COMPILED: Final = "operations inside compiled code"
TEXTS: Final = "modules and numbers of operations in graphs that were read from their text"
ELSEWHERE: Final = "operations of a backward: none was seen, as where another thread runs it"
UNSEEN: Final = "runs of code whose backend runs it out of sight: its graphs are listed once"


class Tracer:
    """Traces the operations of `steps`.

    say: receives the entries of the operation log at the end of each step. missed: receives the
    reason of each gap, that is, of something that was not traced. compiled: whether compiled graphs
    are read, and stated as gaps where they cannot be read. keep: returns the object that records
    values of operations, given a function that states gaps; None where no values were asked for.
    cache: the log and tensor layouts that the traces of a session share.
    """

    def __init__(  # noqa: PLR0913  # the objects that it connects
        self,
        steps: range,
        digests: Digests,
        say: Callable[[list[Entry]], None],
        missed: Callable[[str], None],
        *,
        compiled: bool = True,
        keep: Callable[[Callable[[str], None]], ValueRecorder] | None = None,
        cache: TraceCache,
    ) -> None:
        self.steps = steps
        self._digests = digests
        self._say, self._missed = say, missed
        self._names = ModuleNames()
        self._state = StepState(self._names, Digester(cache.layouts))
        self._log = cache.log
        self._log.restate()
        self._mode: OpMode | None = None
        self._thread = 0
        self._step = -1
        self._gaps: dict[str, tuple[int, int, int]] = {}
        self._over = False
        self._compiled = compiled
        self._value_recorder = None if keep is None else keep(self._gap)
        self._inductor = InductorGraphs(digests, self._value_recorder)
        self._unseen = UnseenGraphs()
        self._is_unseen = False
        read = self._inductor.read, self._unseen.read, self._run_graph, self._gap
        self._reader = GraphReader(*read, on_text=self._unseen.read_text)
        if compiled:
            self._reader.open()

    def know(self, parts: NamedMembers) -> None:
        """Add the modules and parameters of a watched model, so that operations can name them."""
        self._names.know(parts.modules, parts.parameters)
        self._names.find_memory()

    @property
    def is_done(self) -> bool:
        """Whether no further step will be traced and the dispatch mode is off torch's stack."""
        return self._over and self._mode is None

    def begin(self, step: int, *, midway: bool = False) -> None:
        """Begin to trace step `step`, if it was asked for.

        midway: whether the step began earlier; such a step cannot be traced whole and becomes a
        gap. So does a step that begins inside a compiled function, or under a dispatch mode of the
        user's.
        """
        self._step = step
        if self._over or step not in self.steps:
            return
        if midway:
            self._gap(MIDWAY)
        elif is_called_compiled(sys._getframe()):  # noqa: SLF001
            self._gap(WITHIN)
        elif dispatch_modes():  # our mode would leave the stack with the user's mode below
            self._gap(OTHER_MODE)
        else:
            self._state.next_step()
            self._mode = self._new_mode()
            self._thread = threading.get_ident()
            self._mode.__enter__()

    def end_step(self, upcoming: int | None) -> None:
        """End the traced step and hand over its operations, because step `upcoming` begins.

        upcoming: None where no further step begins. Nothing happens if it is the open step.
        """
        if upcoming == self._step:
            return
        over = upcoming is None or upcoming >= self.steps.stop
        try:
            self._end_values(over=over)
            self._hand_over()
        except Exception as fault:  # noqa: BLE001  # inside a user's optimizer step
            self._fault(fault)
        self._over |= over
        if self._over:
            self._reader.close()
        if self._mode is None or self._over or upcoming not in self.steps:
            self._take_away()
            if upcoming is not None:
                self.begin(upcoming)
        elif upcoming is not None:
            self._step = upcoming

    def _new_mode(self) -> OpMode:
        parts = self._state, self._digests, self._inductor, self._gap, self._fault
        return (
            OpMode(*parts)
            if self._value_recorder is None
            else ValuesMode(self._value_recorder, *parts)
        )

    def _end_values(self, *, over: bool) -> None:
        """Tell the recorder of operations' values, if there is one, that a step has ended.

        over: whether that was the last traced step; then a warning names the selectors that have
        matched no operation.
        """
        if self._value_recorder is None:
            return
        self._value_recorder.forget()
        unmatched = self._value_recorder.miss_unmatched() if over and not self._over else []
        if unmatched:
            named = ", ".join(map(quoted, unmatched))
            _log.warning(
                "anchorlib: trace(values=...): no operation that was traced is named %s; "
                "`anchor ops` lists those that were",
                named,
            )

    def silence(self) -> None:
        """Trace nothing more: this process was forked from the process that traces."""
        self._over = True
        if self._mode is not None:
            self._mode.live = False

    def _run_graph(self, key: GraphKey, given: list[Any], run: Callable[[], Any]) -> Any:
        """Run a graph compiled by Inductor and note its operations if a trace is active.

        key: identifies the graph. given: the graph's inputs. run: a function that runs the graph.
        Returns what `run` returns. In an active trace, a graph that was not read becomes a gap.
        """
        mode = self._mode
        if mode is None or not (mode.live and dispatch_modes()):
            return run()
        if not self._inductor.knows(key):
            self._gap(COMPILED)
            return run()
        return mode.run_graph(key, given, run)

    def _gap(self, reason: str) -> None:
        """Count a gap: note that something in this step was not traced, for `reason`."""
        count, first, _ = self._gaps.get(reason, (0, self._step, self._step))
        self._gaps[reason] = (count + 1, first, self._step)
        self._missed(reason)

    def _fault(self, fault: Exception) -> None:
        """End the trace, with a warning, after an exception in anchorlib; training goes on."""
        if self._mode is not None:
            self._mode.live = False
        self._over = True
        reason = f"{type(fault).__name__}: {fault}"[:200]
        self._gap(reason)
        _log.warning("anchorlib: the trace of operations has ended: %s", reason)

    def _hand_over(self) -> None:
        self._find_unseen()
        ops = self._state.next_step()
        if ops and self._compiled and _has_compiled() and not any(map(_is_compiled, ops)):
            self._gap(COMPILED)
        elif _lacks_backward(ops):
            self._gap(ELSEWHERE)
        entries = list(self._log.entries(self._step, ops))
        entries += [gap_entry(reason, *counts) for reason, counts in self._gaps.items()]
        if entries:
            self._say(entries)

    def _find_unseen(self) -> None:
        """Add to the step's operations those of compiled graphs whose runs are not seen.

        Each graph is listed once, not at each run. From then on each step has a gap that says so.
        """
        if self._mode is None or not self._mode.live:
            return
        ran = {signature(graph) for graph in self._state.graphs}
        graphs = self._unseen.take(self._inductor.compilations, ran)
        self._inductor.note_unseen(graphs, self._state)
        self._is_unseen |= bool(graphs)
        if self._unseen.has_texts:
            self._gap(TEXTS)
        if self._is_unseen:
            self._gap(UNSEEN)

    def _take_away(self) -> None:
        """Have the dispatch mode note nothing more, and take it off torch's stack if possible now.

        That is not possible inside a compiled call, on another thread, or while a mode of the
        user's lies above it on the stack.
        """
        mode = self._mode
        if mode is None:
            return
        mode.live = False
        on_top = dispatch_modes() and dispatch_mode_at(dispatch_modes() - 1) is mode
        if is_called_compiled(sys._getframe()):  # noqa: SLF001
            return  # after the compiled call torch restores its note that a mode is active
        if on_top and threading.get_ident() == self._thread:
            mode.__exit__(None, None, None)
            self._mode = None


def _is_compiled(op: TracedOp) -> bool:
    return op.form.source != "eager"


def _lacks_backward(ops: list[TracedOp]) -> bool:
    """Return whether `ops` hold an optimizer step and a forward with gradients, but no backward."""
    stages = {op.form.stage for op in ops}
    followed = any(op.form.seq is not None for op in ops)
    return followed and "optimizer" in stages and not stages & {"backward", "accumulate"}


def _has_compiled() -> bool:
    """Return whether torch.compile has made code in this process."""
    return count_compiled() > 0
