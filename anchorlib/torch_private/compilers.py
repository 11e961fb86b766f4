"""The names by which the graphs of compilers are read while they are compiled, and seen to run.

`capture.tracing.doors` waits for these modules and never imports them.
"""

from __future__ import annotations

from typing import Any, Final

from torch import fx

from anchorlib.torch_private.door import Reach, later

__all__ = [
    "AOT_LOGS",
    "AOT_MODULE",
    "CACHES",
    "GRAPH_DOORS",
    "INDUCTORS_DEBUG",
    "INDUCTORS_OUTPUT",
    "inductors_graph",
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
"""The modules of settings, and what turns off the cache of compiled graphs in each."""

_GRAPHS: Final = "Inductor's graphs and kernels"

_doors = [
    *(
        later(
            f"{AOT_MODULE}.{name}",
            "AOT's graphs, of any backend; torch logs them there, no more",
            "graphs of backends of AOT's",
            reach=Reach.TRACED,
            since="2.10",
        )
        for name in AOT_LOGS
    ),
    later(
        f"{INDUCTORS_DEBUG}.log_ir_post_fusion",
        "Inductor's graph and its kernels; torch logs them there, no more",
        _GRAPHS,
        reach=Reach.TRACED,
        since="2.7",
    ),
    later(
        "torch._inductor.virtualized.V",
        "the graph that Inductor is making code of",
        _GRAPHS,
        reach=Reach.TRACED,
    ),
    later(
        f"{INDUCTORS_OUTPUT}.CompiledFxGraph.__call__",
        "when such a graph runs, on which tensors",
        "when Inductor's graphs run",
        reach=Reach.TRACED,
    ),
    *(
        later(
            f"{module}.{name}",
            "off while a trace is asked for: what comes from a cache is not compiled, nor read",
            "graphs that come from a cache",
            reach=Reach.TRACED,
        )
        for module, name in CACHES.items()
    ),
]
GRAPH_DOORS: Final = {door.name: door.loss for door in _doors}
"""Each name by which graphs are read, and what is not known without it."""


def inductors_graph() -> Any:
    """What Inductor is making code of."""
    from torch._inductor.virtualized import V

    return V.graph


def node_lines(module: fx.GraphModule) -> tuple[Any, int] | None:
    """Which line of a graph's code is which node's, and where the first one is.

    A graph's module is code that torch has written, a line for each node. None where it does not
    tell.
    """
    lines = getattr(module, "_lineno_map", None)
    first = getattr(module, "_prologue_start", None)
    return None if lines is None or first is None else (lines, first)


def _a_graphs_lines() -> object:
    return node_lines(fx.symbolic_trace(_identity))


def _identity(x: Any) -> Any:
    return x + x


later(
    "torch.fx.GraphModule._lineno_map, ._prologue_start",
    "which node of a graph runs, where it is run operation by operation",
    "operations of compiled code that runs one by one carry no module and no line of the user's",
    reach=Reach.TRACED,
    since="2.10",
    probe=_a_graphs_lines,
)
