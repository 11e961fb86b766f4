"""Replay: the operation at an origin, computed again from the stored values of each run.

replays       computes an origin again, and says which formula each run used
operands      the operands of the operation that made a record, as both runs stored them
traced        the operands of one traced operation inside an origin
recipes       a recipe: candidate functions, and the parts of the operands that they take
rules         which recipe an operation has; some of the rules are in `losses`, `attention`,
              `convolutions` and `transposed`
"""

from anchorlib.diagnosis.recomputation.replays import replay, replayed

__all__ = ["replay", "replayed"]
