"""Which record of one run stands for which record of the other.

Each run becomes a table with a row for each record. Two rows are paired by their names and
coordinates, never by the order in which they arrived.

tables        the records of each run as a table, a row for each record
identity      the key of a row, which its partner in the other run has too
splits        work that one run does in several passes or ranks, and the other at once
alignment     the pairs of rows, and the renamings that led to them
renaming      names of one run that stand for different names of the other run
orders        samples that one run has in another order within a batch
loss_scales   a loss scale that a program applies by itself, found in the gradients
taken_gradients  whether the gradients that optimizers take show that clipping hid no factor
inner_gradients  gradients that a program makes inside its forward
join          two tables aligned, by means of all of these
selected      the pairs of some tensors alone, by the names that A has for them
unread_ranks  whether ranks that were not read change the pairs
edges         from what each tensor of A was computed, completed by B's edges
"""

from anchorlib.diagnosis.pairing.alignment import Alignment, Counts, Renaming
from anchorlib.diagnosis.pairing.edges import compiled, opaque, statements, with_operations
from anchorlib.diagnosis.pairing.identity import packed, shared_codes
from anchorlib.diagnosis.pairing.inner_gradients import inner_gradients
from anchorlib.diagnosis.pairing.join import align
from anchorlib.diagnosis.pairing.orders import near_order
from anchorlib.diagnosis.pairing.selected import aligned_runs
from anchorlib.diagnosis.pairing.splits import buffers_of, parameters_of
from anchorlib.diagnosis.pairing.tables import (
    NO_REPRESENTATIVES,
    RecordPlace,
    Representatives,
    SendableValues,
    StoredValues,
    Table,
    model_of_input,
    place_at,
    row_digests,
    stored_values,
    table_of,
    with_own_digests,
)
from anchorlib.diagnosis.pairing.taken_gradients import is_taken

__all__ = [
    "NO_REPRESENTATIVES",
    "Alignment",
    "Counts",
    "RecordPlace",
    "Renaming",
    "Representatives",
    "SendableValues",
    "StoredValues",
    "Table",
    "align",
    "aligned_runs",
    "buffers_of",
    "compiled",
    "inner_gradients",
    "is_taken",
    "model_of_input",
    "near_order",
    "opaque",
    "packed",
    "parameters_of",
    "place_at",
    "row_digests",
    "shared_codes",
    "statements",
    "stored_values",
    "table_of",
    "with_operations",
    "with_own_digests",
]
