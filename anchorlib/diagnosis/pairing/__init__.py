"""Which record of one run stands for which of the other.

Each run becomes a table with a row for each record. Two rows are paired by their names and
coordinates, never by the order in which they arrived.
"""

from anchorlib.diagnosis.pairing.alignment import Alignment, Counts, Renaming
from anchorlib.diagnosis.pairing.columns import table_of, with_own_digests
from anchorlib.diagnosis.pairing.identity import shared_codes
from anchorlib.diagnosis.pairing.join import align
from anchorlib.diagnosis.pairing.keys import packed
from anchorlib.diagnosis.pairing.places import Place, place_at
from anchorlib.diagnosis.pairing.selection import aligned_runs
from anchorlib.diagnosis.pairing.standing import NOBODY, Standing
from anchorlib.diagnosis.pairing.statements import compiled, statements
from anchorlib.diagnosis.pairing.stored import FarValues, StoredValues, stored_values
from anchorlib.diagnosis.pairing.table import Table

__all__ = [
    "NOBODY",
    "Alignment",
    "Counts",
    "FarValues",
    "Place",
    "Renaming",
    "Standing",
    "StoredValues",
    "Table",
    "align",
    "aligned_runs",
    "compiled",
    "packed",
    "place_at",
    "shared_codes",
    "statements",
    "stored_values",
    "table_of",
    "with_own_digests",
]
