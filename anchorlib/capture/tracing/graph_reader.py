"""GraphReader: reads compiled graphs by wrapping private functions of torch, whose names are here.

AOT (AOTAutograd) makes graphs of forward and backward; a backend such as Inductor compiles these to
kernels. The private names for graphs that run operation by operation are in `running_nodes`; no
other file of tracing uses private names of compilers.

    _log_fw_bw_graphs, _log_inference_graph
                                        functions that log AOT's graphs, for any backend
    log_ir_post_fusion                  the function that logs Inductor's graph and its kernels
    CompiledFxGraph.__call__            runs such a graph, on the tensors that it is given
    fx_graph_cache, autograd_cache      switched off while a trace is asked for: a graph that comes
                                        from a cache is not compiled, and so could not be read

Where torch has moved a name, the trace states a gap with that name, and a test fails. What is
possible without the name is still read: AOT's graphs are taken from the text that torch logs, and
where kernels or runs of an Inductor graph are not seen, AOT's graph is listed in its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from torch import fx

from anchorlib.capture.dynamo_marks import skip_frames
from anchorlib.capture.tracing.compiler_graphs import CompilerGraph, read_graph
from anchorlib.capture.tracing.import_callbacks import ImportCallbacks
from anchorlib.capture.tracing.log_listener import LogListener
from anchorlib.torch_private import (
    AOT_ENTRY,
    AOT_LOGS,
    AOT_MODULE,
    AOT_TEXTS,
    CACHES,
    GRAPH_DOORS,
    INDUCTORS_DEBUG,
    INDUCTORS_OUTPUT,
    inductors_graph,
    is_in_torch,
)

__all__ = ["GraphKey", "GraphReader"]

_Given = TypeVar("_Given")


class GraphKey(NamedTuple):
    """Identifies a graph of Inductor's, both while it is compiled and when it runs.

    number: Inductor's number of the graph; a forward and its backward share one. is_backward:
        whether it is the backward.
    """

    number: int
    is_backward: bool


Call = Callable[[GraphKey, list[Any], Callable[[], Any]], Any]
"""Runs a graph: gets its key, its inputs and a function that runs it; returns the result."""


class GraphReader:
    """Reads graphs while they are compiled, and intercepts their runs, from `open` to `close`.

    on_graph: is given each graph of Inductor's that was read, after its key. on_aot: is given each
        graph of AOT's before its backend gets it. on_call: is called in place of each graph of
        Inductor's that runs, and has to run it. on_missing: is given the reason whenever something
        cannot be read. on_text: is given the text that torch logs of AOT's graphs, but only where
        torch has moved the functions that get the graphs themselves.
    """

    def __init__(
        self,
        on_graph: Callable[[GraphKey, CompilerGraph], None],
        on_aot: Callable[[fx.Graph], None],
        on_call: Call,
        on_missing: Callable[[str], None],
        on_text: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._on_graph, self._on_aot = on_graph, on_aot
        self._on_call, self._on_missing = on_call, on_missing
        self._listener = LogListener(self._safe(lambda message: on_text(message.getMessage())))
        self._sees_runs = True
        self._undo: list[Callable[[], None]] = []
        self._thread = threading.get_ident()
        meetings = {
            AOT_MODULE: self._read_aot,
            INDUCTORS_DEBUG: self._read,
            INDUCTORS_OUTPUT: self._watch,
            **dict.fromkeys(CACHES, self._leave_cache),
        }
        if not is_in_torch(AOT_MODULE):
            meetings[AOT_ENTRY] = lambda _: self._listen()
        self._imports = ImportCallbacks({name: self._safe(meet) for name, meet in meetings.items()})

    def open(self) -> None:
        """Wrap torch's functions that log or run graphs.

        In modules that are not loaded yet, the functions are wrapped when the modules are imported.
        """
        self._imports.begin()
        for module in (AOT_MODULE, INDUCTORS_DEBUG, INDUCTORS_OUTPUT):
            if not is_in_torch(module):
                self._miss(module)

    def close(self) -> None:
        """Put torch's own functions and settings back."""
        self._imports.end()
        self._listener.end()
        undone, self._undo = self._undo, []
        for undo in reversed(undone):
            try:
                undo()
            except Exception as fault:  # noqa: BLE001  # at the end of a user's step
                self._unread(fault)

    def _safe(self, take: Callable[[_Given], None]) -> Callable[[_Given], None]:
        """Return `take`, wrapped so that its exceptions are reported by `on_missing`, not raised.

        The user's code that imports or compiles while `take` runs must not fail because of `take`.
        """

        def taken(given: _Given) -> None:
            try:
                take(given)
            except Exception as fault:  # noqa: BLE001  # inside a user's import
                self._unread(fault)

        return taken

    def _miss(self, name: str, instead: str = "") -> None:
        """Report to `on_missing` that torch has moved `name`, and do without it from now on.

        For a name of AOT's, the text that torch logs is read instead. If runs of Inductor's graphs
        are seen by the name, Inductor's graphs are no longer read.

        name: a module, or an attribute of one, with its full path. instead: in words, what torch
            now has under that name; "" where it has nothing.
        """
        losses = (door.loss for one, door in GRAPH_DOORS.items() if one.startswith(name))
        self._on_missing(f"{next(losses, 'code')}: this torch has {instead or f'no {name}'}")
        if name.startswith(AOT_MODULE):
            self._listen()
        elif name.startswith(INDUCTORS_OUTPUT):
            self._sees_runs = False

    def _listen(self) -> None:
        """Begin to give `on_text` what torch's loaded modules log of AOT's graphs."""
        self._listener.begin(AOT_TEXTS)

    def _named(self, module: Any, name: str) -> Any:
        """Return the private attribute `name` of a torch module.

        If the module has no such attribute, or another thing than expected under that name, None is
        returned, and `on_missing` is told what cannot be traced without it.
        """
        full = f"{module.__name__}.{name}"
        attribute = getattr(module, name, None)
        door = next(door for one, door in GRAPH_DOORS.items() if one.startswith(full))
        if door.fitting(attribute) is None:
            self._miss(full, "" if attribute is None else f"another {full}, of {type(attribute)}")
            return None
        return attribute

    def _unread(self, fault: Exception) -> None:
        self._on_missing(
            f"a compiled graph could not be read: {type(fault).__name__}: {fault}"[:200]
        )

    def _put(self, holder: Any, name: str, value: Any) -> None:
        before = getattr(holder, name)
        setattr(holder, name, value)

        def undo() -> None:
            if getattr(holder, name) is value:  # nobody has wrapped it since
                setattr(holder, name, before)

        self._undo.append(undo)

    def _read_aot(self, module: ModuleType) -> None:
        for name in AOT_LOGS:
            logged = self._named(module, name)
            if logged is not None:
                self._put(module, name, self._reading_graphs_first(logged))

    def _reading_graphs_first(self, logged: Callable[..., Any]) -> Callable[..., Any]:
        """Return torch's function `logged`, wrapped to give its graphs to `on_aot` first.

        Its graphs are the graph modules among its arguments.
        """

        @wraps(logged)
        def log(*args: Any, **kwargs: Any) -> Any:
            try:
                for given in (*args, *kwargs.values()):
                    if isinstance(given, fx.GraphModule):
                        self._on_aot(given.graph)
            except Exception as fault:  # noqa: BLE001  # while a user's code is compiled
                self._unread(fault)
            return logged(*args, **kwargs)

        return log

    def _read(self, module: ModuleType) -> None:
        logged = self._named(module, "log_ir_post_fusion")
        if logged is None:
            return

        @wraps(logged)
        def log_ir_post_fusion(*args: Any, **kwargs: Any) -> Any:
            try:
                if self._sees_runs:  # else AOT's graph is listed, once
                    self._on_graph(*_inductors(*args, **kwargs))
            except Exception as fault:  # noqa: BLE001  # while a user's code is compiled
                self._unread(fault)
            return logged(*args, **kwargs)

        self._put(module, "log_ir_post_fusion", log_ir_post_fusion)

    def _watch(self, module: ModuleType) -> None:
        compiled = self._named(module, "CompiledFxGraph")
        if compiled is None:
            return
        call = compiled.__call__

        @skip_frames
        def __call__(graph: Any, inputs: Any) -> Any:  # noqa: N807
            settings = getattr(graph, "fx_kwargs", None) or {}
            key = GraphKey(settings.get("graph_id", -1), bool(settings.get("is_backward")))
            return self._on_call(key, inputs, lambda: call(graph, inputs))

        self._put(compiled, "__call__", __call__)

    def _leave_cache(self, config: Any) -> None:
        name = CACHES[config.__name__]
        if self._named(config, name) is None:
            return
        patched = config.patch({name: False})
        patched.__enter__()

        def undo() -> None:
            if threading.get_ident() == self._thread:  # settings belong to a thread
                patched.__exit__(None, None, None)

        self._undo.append(undo)


def _inductors(nodes: Any) -> tuple[GraphKey, CompilerGraph]:
    """Read the graph that Inductor is compiling in this thread; return its key, and what was read.

    nodes: Inductor's kernels of the graph, in the order in which they run.
    """
    lowering = inductors_graph()
    kernels = [(at, kernel) for at, kernel in enumerate(nodes)]
    kernels.sort(key=lambda one: type(one[1]).__name__ == "ExternKernelSchedulerNode")
    groups: dict[str, int] = {}
    for at, kernel in kernels:
        for name in _members(kernel):
            groups.setdefault(name, at)
    graph = getattr(lowering.module, "graph", None) or lowering.orig_gm.graph
    key = GraphKey(lowering.graph_id, bool(lowering.is_backward))
    return key, read_graph(graph, groups)


def _members(kernel: Any) -> list[str]:
    """Return the names of the graph's nodes that a kernel of Inductor computes.

    For a kernel of torch's own (a product of matrices, for example) only the node of the product is
    named, without the views before it.
    """
    names: list[str] = []
    for part in kernel.get_nodes():
        buffer = part.node
        own = getattr(buffer, "origin_node", None)
        if type(part).__name__ == "ExternKernelSchedulerNode":
            names += [own.name] if own is not None else []
        elif buffer is not None:
            names += sorted(node.name for node in buffer.origins)
    return names
