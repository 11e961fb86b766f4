"""How the traced operations of two runs differ at the places where the runs part."""

from anchorlib.diagnosis.tracing.segments import Segments
from anchorlib.diagnosis.tracing.telling import Told, headline, told
from anchorlib.diagnosis.tracing.traces import Traces, traces_of

__all__ = ["Segments", "Told", "Traces", "headline", "told", "traces_of"]
