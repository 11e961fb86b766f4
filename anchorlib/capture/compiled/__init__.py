"""Anchors in code that `torch.compile` compiles.

    anchors     what dynamo traces at an anchor        tracing    constants in the graph
    ops         operators left in the graph            operators  how compiled code keeps operators
    observing   what the operators do when they run    programs   a graph's anchors, in code order
    executions  coordinates of each operator's run     inorder    observations put into code order
    leaves      gradients of graph inputs              outside    gradients of graph outputs
    caches      code compiled without our hooks        prints     print_tensor

The rest of `capture` imports from this `__init__` alone. These files use the observer, recorder,
clock, snapshot and frames of `capture`, and nothing above those.
"""

from __future__ import annotations

from anchorlib.capture.compiled.anchors import (
    TracedPhase,
    anchor_compiled,
    enter_root,
    leave_root,
    watch_compiled,
)
from anchorlib.capture.compiled.caches import forget_compiled_code, take_hooks_inside
from anchorlib.capture.compiled.executions import Watched
from anchorlib.capture.compiled.observing import CompiledObserver
from anchorlib.capture.compiled.operators import define
from anchorlib.capture.compiled.ops import connect
from anchorlib.capture.compiled.prints import connect_printer, print_compiled
from anchorlib.capture.compiled.tracing import not_a_tensor

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
