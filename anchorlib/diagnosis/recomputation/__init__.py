"""Replay: the operation at an origin, computed again from the stored values of each run."""

from anchorlib.diagnosis.recomputation.replays import replay, replayed

__all__ = ["replay", "replayed"]
