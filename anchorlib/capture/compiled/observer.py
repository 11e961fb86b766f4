"""What the operators in compiled code do when they run, for one session.

value     ─▶ is recorded; its coordinates go back into the graph as a small tensor, `where`
gradient  ─▶ is recorded with the coordinates of its forward: those of the execution that the
             autograd node belongs to, or else those in `where`

An `AnchorReference` names the anchor that an operator stands for: name, modes, place in the graph.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, MutableMapping
from weakref import WeakValueDictionary

import torch

from anchorlib.capture.compiled.compile_warnings import LOW, CompileWarnings
from anchorlib.capture.compiled.coordinates_tensor import NOWHERE, PackedCoordinates
from anchorlib.capture.compiled.executions import Executions, Watched, in_backward
from anchorlib.capture.compiled.output_gradients import OutsideGradients, is_partial
from anchorlib.capture.compiled.program_order import ProgramOrder, depends_on_order
from anchorlib.capture.compiled.programs import AnchorPlace, AnchorReference, Program, program_of
from anchorlib.capture.counting import CallCoordinates
from anchorlib.capture.eager import Observer
from anchorlib.capture.recording import UNSCALED, NameStreams, Stream
from anchorlib.errors import UnsupportedError
from anchorlib.torch_private import graph_task

__all__ = ["CompiledObserver"]


class CompiledObserver:
    """Observes values and gradients for the operators in compiled code, for one session.

    observer: the session's observer of eager code, whose clock and recorder are used. plan_of:
        returns the plan of a name, that is, what is recorded of it. Its arguments are the name and
        the text of the anchor's modes; it returns None without a name, and where the name's watched
        model is not known.
    """

    def __init__(
        self, observer: Observer, plan_of: Callable[[str, str], NameStreams | None]
    ) -> None:
        self.watched: MutableMapping[int, Watched] = WeakValueDictionary()
        self._observer = observer
        self._warnings = CompileWarnings()
        self._outside = OutsideGradients(observer, self._warnings.warn)
        observer.outside = self._outside.follow
        self._plan = functools.cache(plan_of)
        self._executions = Executions(observer, self._plan, self.watched)
        self._lock = threading.RLock()
        coordinates = PackedCoordinates()
        self._where, self._at = coordinates.encode, coordinates.decode
        self._order = ProgramOrder()
        self._taken: dict[
            tuple[AnchorReference, int], int
        ] = {}  # by leaf, the backward that recorded it
        self._ran: set[int] = set()
        self._compilers: set[str] = set()
        # Places in forward that were observed once and need none of the checks of `_any_value`.
        self._ordinary: dict[AnchorReference, tuple[Program, NameStreams]] = {}

    # -- called by operators

    def value(self, x: torch.Tensor | None, anchor: AnchorReference) -> tuple[int, ...]:
        """Observe `x`, and return its coordinates as the five numbers of `where`.

        x: the tensor; None only counts the call. anchor: the anchor whose operator runs.
        Returns NOWHERE if the call was neither recorded nor counted. Raises UnsupportedError for a
        tensor that an anchor cannot record (in a watched model, such a tensor is counted as skipped
        instead). All other errors are logged, and NOWHERE is returned.
        """
        if self._warnings.declared:
            self._warnings.declared.pop(anchor.name, None)
        try:
            with self._lock:
                known = self._ordinary.get(anchor)
                if known is not None and x is not None and not in_backward():
                    return self._ordinary_value(x, anchor, *known)
                return self._any_value(x, anchor)
        except UnsupportedError as fault:
            if not anchor.modes.startswith("watch:"):
                raise
            self._observer.fault(anchor.name, "value", fault)  # a hook may not raise
        except Exception as fault:  # noqa: BLE001  # training goes on whatever happens here
            self._observer.fault(anchor.name, "value", fault)
        return NOWHERE

    def _any_value(self, x: torch.Tensor | None, anchor: AnchorReference) -> tuple[int, ...]:
        """Observe `x`, and return its coordinates as the five numbers of `where`.

        This is the long way: for anchors that `_know` has not noted, for calls without a tensor,
        and for calls inside backward. Returns NOWHERE if the call is neither recorded nor counted.
        x: the tensor; None only counts the call. anchor: the anchor whose operator runs.
        """
        program = program_of(anchor)
        at, new = self._place(program, anchor)
        if at is None:
            return NOWHERE
        if program is not None and program.number not in self._ran:
            self._run_first(program)
        if new:
            self._see(x, at, program, anchor)
            self._know(program, anchor)
        return self._where(at)

    def _ordinary_value(
        self, x: torch.Tensor, anchor: AnchorReference, program: Program, plan: NameStreams
    ) -> tuple[int, ...]:
        """Observe `x`, and return its coordinates as the five numbers of `where`.

        This is the short way, for anchors that `_know` has noted: they run in every step. Returns
        NOWHERE if the call is neither recorded nor counted.

        anchor: the anchor whose operator runs. program: the program (list of anchors) of its graph.
            plan: what is recorded of `x`.
        """
        at = self._executions.forward(program, anchor.site)
        if at is None:
            return NOWHERE
        _, _, only, _ = plan.routes.get(at.phase) or plan.route(at.phase)
        quick = self._observer.recorder.quick
        if only is None or x.dtype in LOW or quick(only, at, x) is None:
            self._see(x, at, program, anchor)
        return self._where(at)

    def _know(self, program: Program | None, anchor: AnchorReference) -> None:
        """Note `anchor`, so that `_ordinary_value` observes the tensors there from now on.

        program: the program (list of anchors) of its graph; None where another process traced the
            graph. The anchor is not noted then, nor if it has no name or plan, or if the gradient
            there cannot be hooked.
        """
        if program is None or not anchor.name or anchor.site in program.lost:
            return
        plan = self._plan(anchor.name, anchor.modes)
        if plan is not None:
            self._ordinary[anchor] = (program, plan)

    def _run_first(self, program: Program) -> None:
        """When a graph first runs, note its backend and autocast dtype in the run's header."""
        self._ran.add(program.number)
        self._compilers.add(program.backend or "unknown")
        self._observer.recorder.header("torch.backend", "|".join(sorted(self._compilers)))
        if program.autocast is not None:
            self._observer.recorder.header("amp.autocast", program.autocast)

    def gradient(self, g: torch.Tensor, where: torch.Tensor, anchor: AnchorReference) -> None:
        """Observe `g`, the gradient of the tensor whose value was observed at `where`.

        where: coordinates as a small tensor. anchor: the anchor whose operator runs.
        Does nothing where another session recorded the value. A gradient whose coordinates cannot
        be found is counted as skipped.
        """
        known = self._ordinary.get(anchor)
        program = program_of(anchor) if known is None else known[0]
        with self._lock:
            at = None if program is None else self._executions.gradient(program, anchor.site)
            if at is not None and known is not None:
                plan = known[1]
                _, _, _, only = plan.routes.get(at.phase) or plan.route(at.phase)
                if only is not None:
                    self._observer.gradient(plan, at, g)
                    return
            if at is None and (at := self._at(where)) is None and int(where[0]) >= 0:
                return  # the forward belongs to another session
            self._gradient(g, at, program, anchor)

    def leaf_gradient(self, g: torch.Tensor, anchor: AnchorReference, leaf: int = -1) -> None:
        """Observe the gradient of a leaf once in each backward, at the coordinates of its last use.

        If the leaf's last use was in an earlier pass, the coordinates are those of this moment.

        anchor: the leaf's anchor. leaf: the id of the leaf, since several leaves may have one name;
            -1 where it is not known.

        Does nothing where this backward has recorded the leaf already, or where the leaf's anchor
        was never run in this session.
        """
        program, task = program_of(anchor), graph_task()
        key = (
            (anchor, -1)
            if leaf == -1
            else (AnchorReference(anchor.name, anchor.modes, -1, -1), leaf)
        )
        with self._lock:
            at = None if program is None else self._executions.latest(program, anchor.site)
            if at is None or self._taken.get(key) == task != -1:
                return  # another session left the hook, or this backward has recorded the leaf
            self._taken[key] = task
            now = self._observer.clock.now()  # the leaf may be used in a pass that has no anchor
            self._gradient(g, at if at[:2] == now[:2] else now, program, anchor)

    def notice(self, where: torch.Tensor) -> None:
        """Note that a gradient came for the pass in `where`, so that the next forward opens a pass.

        Nothing is recorded. where: coordinates of the forward call, as a small tensor.
        """
        at = None if self._observer.closed else self._at(where)
        if at is not None:
            self._observer.clock.gradient(at)

    # -- called from elsewhere

    def see_from_outside(
        self, node: object, given: tuple[str, str], gradient: torch.Tensor | None
    ) -> None:
        """Warn, once in a session, that the recorded gradient of a graph's input may lack a part.

        node: the autograd node that runs. given: the name of the input and the text of its modes.
            gradient: what the hook outside of compiled code was given. None is counted as a skipped
            gradient; for any other gradient, the run's header names the input.

        Does nothing where no gradient of this name is recorded, or no part can be missing.
        """
        plan = self._plan(*given)
        if plan is not None and is_partial(node):
            self._outside.arrived(plan, self._observer.clock.now(), gradient)

    def declare(self, name: str) -> None:
        """Note that the anchor `name` was traced.

        If it records nothing in the next step, a warning is logged at the end of that step.
        """
        self._warnings.declared.setdefault(name, self._observer.clock.step)

    def skip(self, name: str, kind: str, reason: str) -> None:
        """Count that the code that is being traced makes no record of `kind` at the anchor `name`.

        kind: "value" or "grad". reason: why there is none. The store keeps the count with the
            reason as a gap.
        """
        self._observer.recorder.skip(name, kind, reason, self._observer.clock.step)

    def settle(self) -> None:
        """Record now all observations that still wait for earlier observations of the program."""
        with self._lock:
            self._order.settle()

    def end_step(self, upcoming: int | None) -> None:
        """Record what still waits in the ended step, and warn of anchors that recorded nothing.

        upcoming: the number of the next step; None after the last one.
        """
        with self._lock:
            self._order.settle()
            self._executions.end_step()
            self._taken.clear()
        self._warnings.tell_marks()
        if overdue := self._warnings.overdue(upcoming):
            # An anchor whose code failed to compile in the end was observed by eager code.
            recorded = {info.name for info in self._observer.recorder.tensors(0)}
            self._warnings.tell_silent(name for name in overdue if name not in recorded)

    # -- places

    def _place(
        self, program: Program | None, anchor: AnchorReference
    ) -> tuple[CallCoordinates | None, bool]:
        """Return the coordinates of the value that `anchor` observes now, and whether to record it.

        program: the program (list of anchors) of the anchor's graph; None where another process
            traced the graph.

        The coordinates are None where the value is neither recorded nor counted.
        """
        if program is None:  # the graph was traced in another process
            plan = self._plan(anchor.name, anchor.modes) if anchor.name else None
            return (
                (None, False) if plan is None else (self._observer.clock.count(plan.counters), True)
            )
        if not in_backward():
            return self._executions.forward(program, anchor.site), True
        event = program.events[anchor.site]
        if isinstance(event, AnchorPlace):
            return self._executions.backward(program, anchor.site, event)
        return None, False

    # -- recording

    def _gradient(
        self,
        g: torch.Tensor,
        at: CallCoordinates | None,
        program: Program | None,
        anchor: AnchorReference,
    ) -> None:
        if self._observer.closed or self._plan(anchor.name, anchor.modes) is None:
            return
        try:
            if at is None:
                reason = "a gradient whose forward is not known"
                self._observer.recorder.skip(anchor.name, "grad", reason, self._observer.clock.step)
                return
            self._observer.clock.gradient(at)
            self._record("grad", g, at, program, anchor)
        except Exception as fault:  # noqa: BLE001  # inside backward
            self._observer.fault(anchor.name, "grad", fault)

    def _see(
        self,
        x: torch.Tensor | None,
        at: CallCoordinates,
        program: Program | None,
        anchor: AnchorReference,
    ) -> None:
        if x is not None:
            if x.dtype in LOW and program is not None and program.backend == "inductor":
                self._warnings.tell_rounding(anchor.name, x.dtype)
            self._record("value", x, at, program, anchor)
        if program is not None and anchor.site in program.lost:
            self._lose(at, program.lost[anchor.site], anchor)

    def _lose(self, at: CallCoordinates, reason: str, anchor: AnchorReference) -> None:
        """Count the gradient of the tensor observed at `at` as skipped, if it was to be recorded.

        reason: why the gradient is not recorded. The store keeps the count with the reason as a
            gap. anchor: the tensor's anchor.
        """
        plan = self._plan(anchor.name, anchor.modes)
        streams = () if plan is None else plan.streams("grad", at.phase)
        if not all(stream.idle(at.step) for stream in streams):
            self._observer.recorder.skip(anchor.name, "grad", reason, at.step)

    def _record(
        self,
        kind: str,
        x: torch.Tensor,
        at: CallCoordinates,
        program: Program | None,
        anchor: AnchorReference,
    ) -> None:
        plan = self._plan(anchor.name, anchor.modes)
        streams = () if plan is None else plan.streams(kind, at.phase)
        if not streams:
            return
        if all(stream.at_once for stream in streams):
            self._observe(streams, kind, at, x)
            return
        observe = functools.partial(self._observe, streams, kind, at)
        # The order of backward is not known here: gradients are recorded as they come.
        ordered = kind == "value" and program is not None and depends_on_order(streams)
        sites = program.sites(anchor.name, anchor.modes) if ordered and program is not None else []
        if anchor.site in sites:
            self._order.take(anchor[:3], sites, anchor.site, x, observe)
        else:
            observe(x)

    def _observe(
        self, streams: tuple[Stream, ...], kind: str, at: CallCoordinates, x: torch.Tensor
    ) -> None:
        scaling = self._observer.scaling if kind == "grad" else UNSCALED
        self._observer.recorder.observe(streams, at, x, scaling)
