"""How the traced operations of two runs differ at the places where the runs part.

traces       the operations of two runs aligned, and added to the origins
op_segments  the operations between a record and the records that it was computed from
telling      differences of operations in words
"""

from anchorlib.diagnosis.tracing.telling import headline, shown_differences
from anchorlib.diagnosis.tracing.traces import Traces, traces_of

__all__ = ["Traces", "headline", "shown_differences", "traces_of"]
