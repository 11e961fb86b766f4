"""The records of one run as a table: a row for each record, and where its values are stored.

table            the table itself: columns, names, digests
making           makes a table of a run's records, column by column
coordinates      the coordinates of a row
stored           where the values of rows are stored, for this process and for others
representatives  ranks that are not read, since an equal rank is read in their place
samples          digests of the samples within a record
"""

from anchorlib.diagnosis.pairing.tables.coordinates import RecordPlace, model_of_input, place_at
from anchorlib.diagnosis.pairing.tables.making import table_of, with_own_digests
from anchorlib.diagnosis.pairing.tables.representatives import NO_REPRESENTATIVES, Representatives
from anchorlib.diagnosis.pairing.tables.samples import row_digests, whole
from anchorlib.diagnosis.pairing.tables.stored import SendableValues, StoredValues, stored_values
from anchorlib.diagnosis.pairing.tables.table import Table, Tensor

__all__ = [
    "NO_REPRESENTATIVES",
    "RecordPlace",
    "Representatives",
    "SendableValues",
    "StoredValues",
    "Table",
    "Tensor",
    "model_of_input",
    "place_at",
    "row_digests",
    "stored_values",
    "table_of",
    "whole",
    "with_own_digests",
]
