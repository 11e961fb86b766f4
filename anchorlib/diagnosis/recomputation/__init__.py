"""Replay: the operation at an origin, computed again from what each of the two runs stored."""

from anchorlib.diagnosis.recomputation.replays import replay, replayed

__all__ = ["replay", "replayed"]
