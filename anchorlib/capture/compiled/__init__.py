"""Anchors in code that `torch.compile` compiles.

    anchors     what dynamo traces at an anchor      tracing     what stands in the graph as constants
    ops         the operators that it leaves there   operators   how compiled code keeps them
    observing   what they do when they run           programs    what dynamo saw, in program order
    executions  where in a run they are              inorder     observations in program order
    leaves      gradients of graph inputs            outside     gradients of graph outputs
    caches      code compiled without our hooks      frames      what dynamo leaves alone
    prints      print_tensor

The rest of `capture` comes in by this door; of it, observer, recorder, clock and snapshot are used
here.
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
from anchorlib.capture.compiled.frames import natively
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
    "natively",
    "not_a_tensor",
    "print_compiled",
    "take_hooks_inside",
    "watch_compiled",
]
