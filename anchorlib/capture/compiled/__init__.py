"""Anchors in code that `torch.compile` compiles.

dynamo, the tracer of torch.compile, traces Python code into a graph of operators. An anchor leaves
operators in the graph that record a tensor whenever the graph runs.

    anchors             what dynamo traces at an anchor
    traced_constants    functions whose results dynamo puts into the graph as constants
    anchor_operators    operators that anchors leave in the graph
    kept_operators      how operators stay in the graph
    print_operators     operators that `print_tensor` leaves in the graph
    observer            what the operators do when they run
    coordinates_tensor  coordinates as a small tensor in the graph
    compile_warnings    warnings about anchors that record nothing, or change how values are rounded
    executions          coordinates of each operator's run
    programs            a graph's anchors, in code order
    program_order       observations put into the order of the program
    input_gradients     gradients of graph inputs
    output_gradients    gradients of graph outputs
    caches              code compiled without our hooks

The rest of `capture` imports from this `__init__` alone. These files import nothing of `models`,
`optimizers`, `inline` or `sessions`.
"""

from __future__ import annotations

from anchorlib.capture.compiled.anchor_operators import connect
from anchorlib.capture.compiled.anchors import (
    TracedPhase,
    anchor_compiled,
    enter_root,
    leave_root,
    watch_compiled,
)
from anchorlib.capture.compiled.caches import forget_compiled_code, take_hooks_inside
from anchorlib.capture.compiled.executions import Watched
from anchorlib.capture.compiled.kept_operators import define
from anchorlib.capture.compiled.observer import CompiledObserver
from anchorlib.capture.compiled.print_operators import connect_printer, print_compiled
from anchorlib.capture.compiled.traced_constants import not_a_tensor

__all__ = [
    "CompiledObserver",
    "TracedPhase",
    "Watched",
    "anchor_compiled",
    "connect",
    "connect_printer",
    "define",
    "enter_root",
    "forget_compiled_code",
    "leave_root",
    "not_a_tensor",
    "print_compiled",
    "take_hooks_inside",
    "watch_compiled",
]
