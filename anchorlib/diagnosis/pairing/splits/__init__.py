"""Work that one run does in several passes or ranks, and the other run at once.

The run that divides the work into more parts is called the finer run.

splits         finds such work by the numbers of passes and ranks of both runs
groups         the records of the finer run that make up one record of the other run
joined_values  the values of a group, joined into those of one record
joint_table    the finer run with its passes or ranks merged, as a table like any other
merging        one run merged until it is split as the other run is
meetings       two runs merged until both are split alike: runs that both split their work, or of
               which B deals the samples of a step to its passes otherwise than A
"""

from anchorlib.diagnosis.pairing.splits.groups import buffers_of, parameters_of
from anchorlib.diagnosis.pairing.splits.joined_values import halves_of
from anchorlib.diagnosis.pairing.splits.meetings import met, redealt
from anchorlib.diagnosis.pairing.splits.merging import Merged, merged
from anchorlib.diagnosis.pairing.splits.splits import meetings, splits

__all__ = [
    "Merged",
    "buffers_of",
    "halves_of",
    "meetings",
    "merged",
    "met",
    "parameters_of",
    "redealt",
    "splits",
]
