"""How B's computation of an origin differs from A's, as far as records and headers show it.

changes       the answer, put together from all files below
calls         the forward calls that made a record, and their operations in both runs
compositions  what one run alone computes a record from, and by which operations
multiples     the factor by which B's record is a multiple of A's
optimizer_settings  settings of the optimizers that differ up to an update
stated        where both runs state that a formula differs, behind earlier rounding
operations    operations between a record and its parents
absences      records that one run alone has
indices       indices and targets among the arguments of operations, by name
autocasting   autocast that one run alone is under, or with another type than the other
precisions    TF32 and the like: by which hardware rounds the operands of products
moves         how far a tensor was moved, compared with the other run
directions    towards what a tensor was moved: a model's average, a gradient
figures       a formula by which an operand's mean, spread and first element follow from A's
rows_read     the rows of a table that were read, known by their bits
relations     a formula by which B's elements follow from A's
targets       the target of a cross entropy, computed from its input and gradient
squares       the target of a squared loss, computed from its value, input and gradient
bootstrapped  a loss's target that contains a recorded value with another factor
leftover      a gradient that was not cleared
reduction     the mean, the sum or neither of the gradients of all ranks
clipping      the norm to which each run clips its gradients
optimizer_state  differences in optimizer state: it began at zero, it counts other steps
decays        weight decay of a parameter, of which the settings say nothing
optimizer_steps  how often an optimizer stepped, and parameters written outside of its steps
second_steps  a second optimizer step on the gradients of one backward
given         a model's input that B has here, and A at another step or on another rank
gradients_missing  parameters of which one run alone has no gradient
prefixes      lists of names made short: h.1.* for all names of a block
step_passes   fewer backward passes before one run's optimizer step
detaching     a graph that one run alone cuts
unreached     values that one run's backward alone reaches
sharing       a weight that one run alone ties
schedules     an optimizer whose settings differ: another eps, a schedule that falls early
constants     buffers that code makes and nothing changes
"""

from anchorlib.diagnosis.judgement.changes.absences import untrained, untrained_since
from anchorlib.diagnosis.judgement.changes.calls import original_of
from anchorlib.diagnosis.judgement.changes.changes import Changes
from anchorlib.diagnosis.judgement.changes.constants import is_constant
from anchorlib.diagnosis.judgement.changes.detaching import detached
from anchorlib.diagnosis.judgement.changes.operations import computing
from anchorlib.diagnosis.judgement.changes.optimizer_steps import written_by_one_run
from anchorlib.diagnosis.judgement.changes.schedules import parted_since, turning
from anchorlib.diagnosis.judgement.changes.second_steps import stepped_again
from anchorlib.diagnosis.judgement.changes.stated import stated
from anchorlib.diagnosis.judgement.changes.step_passes import passes_apart
from anchorlib.diagnosis.judgement.changes.unreached import unreached

__all__ = [
    "Changes",
    "computing",
    "detached",
    "is_constant",
    "original_of",
    "parted_since",
    "passes_apart",
    "stated",
    "stepped_again",
    "turning",
    "unreached",
    "untrained",
    "untrained_since",
    "written_by_one_run",
]
