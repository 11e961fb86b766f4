"""What the operations that both runs traced say of where these part."""

from anchorlib.diagnosis.tracing.telling import headline, told
from anchorlib.diagnosis.tracing.traces import Traces, traces_of

__all__ = ["Traces", "headline", "told", "traces_of"]
