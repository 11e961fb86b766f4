"""The operations of a traced step: their inputs and outputs, and the log in which they are stored.

Op, Operand      an operation, and an input or output tensor of it
op_key           what identifies an operation in its run
OpLog            turns a step's operations into entries: each structure once, then a row per block
read_entries     turns entries into operations again
RecordMakers     finds the operation that made a record
segment          the operations between some operations and a later one
align_ops        aligns the operations of two runs and says which of them differ
base_name        an operation's name as people write it
computes         whether an operation makes new bits, or only moves its input's
kept_as          the records that hold the values of an operation, by kind
traced_steps     the steps that ANCHOR_TRACE asks for
entry_key        the identity of an entry, by which an entry that arrives twice is kept once

Nothing here imports torch: `anchorlib.capture.tracing` sees the operations while they run.
"""

from anchorlib.operations.aligning import align_ops
from anchorlib.operations.asking import traced_steps
from anchorlib.operations.differences import OpAlignment, OpDifference
from anchorlib.operations.entries import Entry, check_entry, entry_key, gap_entry
from anchorlib.operations.gaps import VALUES, OpGap, gaps_of
from anchorlib.operations.kept import kept_as, kept_name, made_kinds, taken_kind
from anchorlib.operations.log import FLOAT, OperandForm, OpForm, OpLog, TracedOp
from anchorlib.operations.makers import RecordMakers, segment
from anchorlib.operations.op import Op, Operand, OpKey, op_key
from anchorlib.operations.op_selection import STAGES, select_ops
from anchorlib.operations.reading import read_entries
from anchorlib.operations.spelling import base_name, computes

__all__ = [
    "FLOAT",
    "STAGES",
    "VALUES",
    "Entry",
    "Op",
    "OpAlignment",
    "OpDifference",
    "OpForm",
    "OpGap",
    "OpKey",
    "OpLog",
    "Operand",
    "OperandForm",
    "RecordMakers",
    "TracedOp",
    "align_ops",
    "base_name",
    "check_entry",
    "computes",
    "entry_key",
    "gap_entry",
    "gaps_of",
    "kept_as",
    "kept_name",
    "made_kinds",
    "op_key",
    "read_entries",
    "segment",
    "select_ops",
    "taken_kind",
    "traced_steps",
]
