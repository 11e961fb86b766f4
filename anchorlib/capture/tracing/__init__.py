"""Tracing: records every operation that torch dispatches during chosen steps of a session.

    SessionTraces       what a session was asked to trace, and the trace under way
     └ Tracer    begins and ends at step boundaries ─▶ OpLog ─▶ the recorder's queue
        ├ OpMode intercepts each operation, on the thread that began the trace
        │  ├ StepState       what is known of a step so far, such as what wrote which memory
        │  └ InductorGraphs  Inductor's graphs, while they run
        └ GraphReader  reads compiled graphs, from the calls in which torch logs them

ATen operations of forward, backward, accumulation and optimizer are traced. torch dispatches few or
none of the operations of compiled code, so the graphs of compiled code are read while they are
compiled, and their operations are listed whenever a graph runs. A graph that could not be read
becomes a gap: an entry which says how often, and why, something was not traced.
"""

from anchorlib.capture.tracing.request import Digests, TraceSteps
from anchorlib.capture.tracing.session_traces import SessionTraces

__all__ = ["Digests", "SessionTraces", "TraceSteps"]
