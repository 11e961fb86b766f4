"""Tracing: the operations themselves, as torch dispatches them, for some steps of a session.

    Traces       what a session was asked for
     └ Tracer    begins and ends at step boundaries ─▶ OpLog ─▶ the recorder's queue
        ├ OpMode sees each operation, on the thread that began the trace
        │  ├ Sights   what is known of a step so far: makers, forward operations, passes
        │  └ Kernels  Inductor's graphs, while they run
        └ Doors  what is compiled, read while torch logs it

ATen operations of forward, backward, accumulation and optimizer are seen. Of compiled code torch
dispatches few or none: its graphs are read, and told where they run. What could not be read is
stated as a gap.
"""

from anchorlib.capture.tracing.request import Digests, TraceSteps
from anchorlib.capture.tracing.traces import Traces

__all__ = ["Digests", "TraceSteps", "Traces"]
