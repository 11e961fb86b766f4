"""What the operations that both runs traced say of where these part."""

from anchorlib.diagnosis.tracing.segments import Segments
from anchorlib.diagnosis.tracing.telling import Told, headline, told
from anchorlib.diagnosis.tracing.traces import Traces, traces_of

__all__ = ["Segments", "Told", "Traces", "headline", "told", "traces_of"]
