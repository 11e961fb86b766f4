"""Private names by which compilers' graphs are read during compilation, and their runs observed.

`capture.tracing.graph_reader`, which uses these names, never imports the modules of torch that have
them: it waits until other code has imported them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from torch import fx

from anchorlib.torch_private.door import AffectedPrograms, is_a, later

__all__ = [
    "AOT_ENTRY",
    "AOT_LOGS",
    "AOT_MODULE",
    "AOT_TEXTS",
    "CACHES",
    "GRAPH_DOORS",
    "INDUCTORS_DEBUG",
    "INDUCTORS_OUTPUT",
    "inductors_graph",
    "is_in_torch",
    "loggers_of",
    "node_lines",
]

AOT_MODULE: Final = "torch._functorch._aot_autograd.graph_compile"
AOT_LOGS: Final = ("_log_fw_bw_graphs", "_log_inference_graph")
INDUCTORS_DEBUG: Final = "torch._inductor.debug"
INDUCTORS_OUTPUT: Final = "torch._inductor.output_code"
CACHES: Final = {
    "torch._inductor.config": "fx_graph_cache",
    "torch._functorch.config": "enable_autograd_cache",
}
"""By module of settings, the setting that switches its cache of compiled graphs on and off."""

_GRAPHS: Final = "Inductor's graphs and kernels"

_doors = [
    *(
        later(
            f"{AOT_MODULE}.{name}",
            "takes AOT's graphs, of any backend; torch only logs them there",
            "graphs of backends of AOT's",
            reach=AffectedPrograms.TRACED,
            since="2.10",
        )
        for name in AOT_LOGS
    ),
    later(
        f"{INDUCTORS_DEBUG}.log_ir_post_fusion",
        "takes Inductor's graph and its kernels; torch only logs them there",
        _GRAPHS,
        reach=AffectedPrograms.TRACED,
        since="2.7",
    ),
    later(
        "torch._inductor.virtualized.V",
        "the graph that Inductor is compiling",
        _GRAPHS,
        reach=AffectedPrograms.TRACED,
        kind=lambda virtual: hasattr(type(virtual), "graph"),
    ),
    later(
        f"{INDUCTORS_OUTPUT}.CompiledFxGraph.__call__",
        "is called when a graph of Inductor's runs, with its tensors",
        "when Inductor's graphs run",
        reach=AffectedPrograms.TRACED,
    ),
    *(
        later(
            f"{module}.{name}",
            "is off while a trace is asked for: a graph from a cache is not compiled, nor read",
            "graphs that come from a cache",
            reach=AffectedPrograms.TRACED,
            kind=is_a(bool),
        )
        for module, name in CACHES.items()
    ),
]
GRAPH_DOORS: Final = {door.name: door for door in _doors}
"""The doors by which compilers' graphs are read, by name."""


AOT_ENTRY: Final = "torch._functorch.aot_autograd"
"""The module whose import loads all other modules of AOT."""

AOT_TEXTS: Final = "aot_graphs"
"""The name that `torch._logging.set_logs` and TORCH_LOGS have for the texts of AOT's graphs."""


def loggers_of(kind: str) -> list[logging.Logger]:
    """Return the loggers through which torch's loaded modules log messages of `kind`.

    kind: a name that `torch._logging.set_logs` knows, such as "aot_graphs".
    """
    every = dict(logging.Logger.manager.loggerDict)
    return [one for one in every.values() if getattr(one, "artifact_name", None) == kind]  # type: ignore[misc]


def _listening() -> object:
    import_module(AOT_MODULE)
    return loggers_of(AOT_TEXTS)[0].addFilter


def _entering() -> object:
    return import_module(AOT_ENTRY).aot_function


later(
    "torch._logging.getArtifactLogger, .artifact_name",
    "takes the texts of AOT's graphs, where their objects cannot be had",
    "graphs of backends of AOT's, where torch has moved the functions that log them too",
    reach=AffectedPrograms.TRACED,
    probe=_listening,
)
later(
    AOT_ENTRY,
    "is imported before AOT makes a graph",
    "the texts of AOT's graphs, where torch has moved the module that has their objects too",
    reach=AffectedPrograms.TRACED,
    probe=_entering,
)


def is_in_torch(module: str) -> bool:
    """Return whether the installed torch has a file for this module; imports nothing."""
    place = Path(fx.__file__).parents[2].joinpath(*module.split("."))
    return place.with_suffix(".py").exists() or place.is_dir()


def inductors_graph() -> Any:
    """Return the graph that Inductor is compiling; to be called only while it compiles one."""
    from torch._inductor.virtualized import V

    return V.graph


def node_lines(module: fx.GraphModule) -> tuple[Any, int] | None:
    """Return (mapping from lines of a graph module's code to nodes, number of the first line).

    torch writes the code of a graph module, with a line for each node. The mapping's keys are line
    numbers counted from that first line; its values are indices of nodes in the graph, None for a
    line of no node. The result is None where this torch lacks the mapping.
    """
    lines = getattr(module, "_lineno_map", None)
    first = getattr(module, "_prologue_start", None)
    return (lines, first) if isinstance(lines, Mapping) and isinstance(first, int) else None


def _a_graphs_lines() -> object:
    return node_lines(fx.symbolic_trace(_identity))


def _identity(x: Any) -> Any:
    return x + x


later(
    "torch.fx.GraphModule._lineno_map, ._prologue_start",
    "which node of a graph runs, where the graph is run operation by operation",
    "operations of graphs that run one by one have neither a module nor a line of user code",
    reach=AffectedPrograms.TRACED,
    since="2.10",
    probe=_a_graphs_lines,
    kind=is_a(tuple),
)
