"""Anchors in eager code: the value is observed at once, its gradient when backward runs."""

from anchorlib.capture.eager.call_sites import COMPILED_NODE
from anchorlib.capture.eager.grafting import VARIABLE, Graft
from anchorlib.capture.eager.observer import Observer

__all__ = ["COMPILED_NODE", "VARIABLE", "Graft", "Observer"]
