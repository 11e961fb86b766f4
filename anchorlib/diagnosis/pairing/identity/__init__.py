"""The identity of a record: one key for each row of a table, by which the row finds its partner.

identity   the keys of two tables: rank, phase, step, pass, call, kind, name and mode
keys       rows matched by equal keys, by sorting and searching whole columns
steps      the offset between the step numbers of two runs
eval_mode  forwards that one run made in training and the other in eval mode
"""

from anchorlib.diagnosis.pairing.identity.identity import (
    Identities,
    mode_class,
    repeats,
    same_bits,
    shared_codes,
)
from anchorlib.diagnosis.pairing.identity.keys import joined, packed
from anchorlib.diagnosis.pairing.identity.steps import step_offset

__all__ = [
    "Identities",
    "joined",
    "mode_class",
    "packed",
    "repeats",
    "same_bits",
    "shared_codes",
    "step_offset",
]
