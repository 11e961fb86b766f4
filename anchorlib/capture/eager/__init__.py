"""What happens at an anchor while Python runs: the value now, its gradient in backward."""

from anchorlib.capture.eager.grafting import VARIABLE, Graft
from anchorlib.capture.eager.observer import Observer
from anchorlib.capture.eager.surroundings import COMPILED_NODE

__all__ = ["COMPILED_NODE", "VARIABLE", "Graft", "Observer"]
