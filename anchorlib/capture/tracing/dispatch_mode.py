"""OpMode: the dispatch mode by which each operation that torch dispatches is intercepted and noted.

The operation itself is called exactly once, with its own arguments, even if anchorlib fails before
or after the call.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from itertools import repeat
from types import FrameType
from typing import Any, Final, NamedTuple

import torch

from anchorlib.capture.dynamo_marks import IS_TOLD, skip_frames
from anchorlib.capture.tracing.arguments import Arguments, tensors_in
from anchorlib.capture.tracing.code_places import OURS, place_of
from anchorlib.capture.tracing.graph_reader import GraphKey
from anchorlib.capture.tracing.inductor import GraphExecution, InductorGraphs
from anchorlib.capture.tracing.request import Digests
from anchorlib.capture.tracing.schemas import OpFacts, facts_of
from anchorlib.capture.tracing.step_state import OpContext, StepState
from anchorlib.capture.tracing.storage_makers import storage_key, storage_keys
from anchorlib.capture.tracing.value_digests import Near
from anchorlib.operations import OperandForm, OpForm, TracedOp
from anchorlib.torch_private import DispatchMode, Overload, current_node, graph_task, is_tracing

__all__ = ["Begun", "OpMode"]

_PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
"""Tensor classes whose operations are noted here.

An operation on any other class first dispatches the operations that it consists of.
"""

_WITHOUT_VALUES: Final = frozenset({"FakeTensor", "FunctionalTensor"})
"""Tensor classes served by a mode of torch's below ours, which is not asked if ours declines."""

_ALL: Final = repeat(True)
_NONE: Final = repeat(False)
# A named tuple's own constructor is a function in Python, which takes several times as long.
_new: Final[Any] = tuple.__new__
_OWNING: Final = ("accumulate", "optimizer")
"""Stages in which an operation's result belongs to the module that has the parameter."""


class Begun(NamedTuple):
    """What is known of an operation before it runs, for `OpMode._note` after it has run.

    facts: facts from the operation's schema. context: the operation's stage (such as forward),
        module and line. pass_index: the pass to which it belongs.

    inputs: the layout of each input tensor. digests: the digests of the inputs' values, joined.

    makers: for each input the number of the operation in the step that made its memory; None for
        memory from before the step.

    source: "eager", or "graph" for an operation that a compiler's graph runs.

    near: a cache of digests of this operation's tensors; None where inputs and outputs share no
        memory.
    """

    facts: OpFacts
    context: OpContext
    arguments: Arguments
    pass_index: int
    inputs: tuple[OperandForm, ...]
    digests: bytes
    makers: list[int | None]
    source: str
    near: Near | None


class OpMode(DispatchMode):  # type: ignore[misc]  # torch leaves it untyped
    """The dispatch mode that notes each operation in `state` while `live` is true.

    state: what is known of the open step. digests: of which tensors digests are noted: "both"
        inputs and outputs, "outputs", or "none". inductor: Inductor's graphs, while they run.
    on_gap: is given the reason whenever something is not traced. on_fault: is given each exception
        that anchorlib's own code raised while it noted an operation.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        state: StepState,
        digests: Digests,
        inductor: InductorGraphs,
        on_gap: Callable[[str], None],
        on_fault: Callable[[Exception], None],
    ) -> None:
        super().__init__()
        self.live = True
        self._state = state
        self._inputs, self._outputs = digests == "both", digests != "none"
        self._on_gap, self._on_fault = on_gap, on_fault
        self._inductor, self._executions = inductor, inductor.executions
        self._lock = threading.Lock()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True, so that torch.compile compiles under this mode and does not go eager."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # `skip_frames` below keeps dynamo out, without importing it and asking it at every call.
        return not IS_TOLD

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation `func`, note it, and return its result.

        args, kwargs: its arguments. types: the classes of the tensor subclasses among them.
        Returns NotImplemented, without running `func`, for subclasses that run it by operations on
        plain tensors, which torch then dispatches here.
        """
        kwargs = kwargs or {}
        if not self.live:
            return func(*args, **kwargs)
        if types and not _PLAIN.issuperset(types):
            if any(kind.__name__ in _WITHOUT_VALUES for kind in types):
                return func(*args, **kwargs)  # torch asks the mode of these classes next
            return NotImplemented  # what the class itself runs is dispatched here again
        execution = self._inductor.execution if self._executions else None
        if execution is not None:
            return self._inside(execution, func, args, kwargs)
        try:
            begun = self._begin(sys._getframe(1), func, args, kwargs)  # noqa: SLF001
        except Exception as fault:  # noqa: BLE001  # inside a user's operation
            begun = None
            self._on_fault(fault)
        out = func(*args, **kwargs)
        if begun is not None:
            try:
                self._note(begun, out)
            except Exception as fault:  # noqa: BLE001  # inside a user's operation
                self._on_fault(fault)
        return out

    def run_graph(self, key: GraphKey, given: list[Any], run: Callable[[], Any]) -> Any:
        """Run a graph of Inductor's and note the operations that it computed; return its result.

        A graph whose operations cannot be noted is run all the same, and reported to `on_gap`.

        key: identifies the graph. given: the graph's inputs. run: runs the graph on them.
        """
        inductor, state = self._inductor, self._state
        execution = None
        try:
            with self._lock:
                execution = inductor.begin(key, given, state)
        except Exception as fault:  # noqa: BLE001  # inside a user's compiled code
            self._unread(fault)
        try:
            out = run()
        finally:
            inductor.leave()
        if execution is not None and self.live:
            try:
                with self._lock:
                    inductor.note(
                        execution, out, state, current_node() if graph_task() != -1 else None
                    )
            except Exception as fault:  # noqa: BLE001  # inside a user's compiled code
                self._unread(fault)
        return out

    def _unread(self, fault: Exception) -> None:
        self._on_gap(f"a graph's run could not be traced: {type(fault).__name__}: {fault}"[:200])

    def _inside(self, execution: GraphExecution, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation that torch dispatches inside an Inductor graph, and note its values.

        execution: the run of the graph. func: the operation. args, kwargs: its arguments.
        Returns the operation's result.
        """
        out = func(*args, **kwargs)
        if isinstance(func, Overload):
            try:
                execution.note_dispatched(facts_of(func), args, kwargs, out)
            except Exception as fault:  # noqa: BLE001  # inside a user's compiled code
                self._unread(fault)
        return out

    def _begin(
        self, frame: FrameType, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Begun | None:
        if not isinstance(func, Overload):
            self._on_gap(f"what {getattr(func, '__name__', func)} runs inside was not traced")
            return None
        facts = facts_of(func)
        if facts.silent or is_tracing():
            return None
        backward = graph_task() != -1
        state = self._state
        place = place_of(frame, state.names.modules, backward=backward)
        if place is OURS:
            return None
        arguments = Arguments(facts.arguments, args, kwargs, facts.defaults)
        tensors = arguments.tensors
        keys = storage_keys(tensors)
        node = current_node() if backward else None
        with self._lock:
            context = state.context_of(facts, place, node, tensors, keys)
            makers = state.makers.of(keys)
            pass_index = state.pass_index
        wanted = state.are_written(makers) if self._inputs else _NONE
        near: Near | None = {} if facts.shares else None
        inputs, digests = state.digester.operands(arguments.names, tensors, wanted, near)
        source = "eager" if place.graph is None else "graph"
        fields = facts, context, arguments, pass_index, inputs, digests, makers, source, near
        begun: Begun = _new(Begun, fields)
        return begun

    def _note(self, begun: Begun, out: Any) -> None:
        facts, context, arguments, pass_index, inputs, digests, makers, source, near = begun
        made = [out] if isinstance(out, torch.Tensor) else list(tensors_in(out))
        names = ["out"] * len(made)
        mutates: tuple[int, ...] = ()
        writes = facts.written(arguments.text)
        if writes:
            mutates = arguments.places(writes)
            for place in mutates:  # a fused operation does not return what it writes
                x = arguments.tensors[place]
                if x is not out and not any(x is one for one in made):
                    names.append(arguments.names[place])
                    made.append(x)
        state = self._state
        wanted = _ALL if self._outputs and not facts.blank else _NONE
        outputs, made_digests = state.digester.operands(names, made, wanted, near)
        with self._lock:
            index = len(state.ops)
            fields = (
                facts.name,
                context.stage,
                context.module,
                context.seq,
                context.node,
                context.where,
                inputs,
                outputs,
                arguments.text,
                tuple([None if maker is None else index - maker for maker in makers]),
                mutates,
                facts.view,
                source,
                context.origin,
                None,
            )
            traced = (
                _new(OpForm, fields),
                pass_index,
                digests + made_digests,
                tuple(arguments.floats),
            )
            state.add(_new(TracedOp, traced), facts)
            self._note_memory(context, names, made, index, view=facts.view)

    def _note_memory(
        self,
        context: OpContext,
        names: list[str],
        made: list[torch.Tensor],
        index: int,
        *,
        view: bool,
    ) -> None:
        """Note that operation number `index` has made or written the memory of the tensors `made`.

        If the operation accumulates gradients, or an optimizer's step runs it, the memory is also
        noted as that of the module to which the parameter belongs.

        context: the operation's stage and module. names: for each tensor "out" if it was returned,
            or the name of the argument if it was written. view: whether the operation returns a
            view, whose memory it has not made.
        """
        state = self._state
        owned = context.module if context.stage in _OWNING else ""
        for name, x in zip(names, made, strict=True):
            if not view or name != "out":
                key = state.makers.made(x, index)
            elif owned:
                key = storage_key(x)
            if owned:
                state.names.own(key, owned)


skip_frames(OpMode.__torch_dispatch__)
