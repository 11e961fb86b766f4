"""Anchors in eager code: the value is observed at once, its gradient when backward runs."""

from anchorlib.capture.eager.grafting import VARIABLE, Graft
from anchorlib.capture.eager.observer import Observer
from anchorlib.capture.eager.surroundings import COMPILED_NODE

__all__ = ["COMPILED_NODE", "VARIABLE", "Graft", "Observer"]
