"""How the traced operations of two runs differ at the places where the runs part."""

from anchorlib.diagnosis.tracing.telling import headline, shown_differences
from anchorlib.diagnosis.tracing.traces import Traces, traces_of

__all__ = ["Traces", "headline", "shown_differences", "traces_of"]
