"""What came from outside the recording: data, parameters and buffers that began unequal.

Inputs, buffers and loose values have no recorded parents, and parameters none where recording
begins. So their difference either came from outside, or the program computed them unseen. Their
earlier records, and the records that come before them in their pass, tell which.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from anchorlib.diagnosis.causes import EQUAL, Frontier, Role, StartingValues, starting_values
from anchorlib.diagnosis.judgement.changes import Changes, is_constant
from anchorlib.diagnosis.judgement.earlier_passes import taken_from_other_passes
from anchorlib.diagnosis.judgement.made_by_code import MadeByCode
from anchorlib.diagnosis.judgement.origins import LIMIT
from anchorlib.diagnosis.judgement.series import values
from anchorlib.diagnosis.judgement.surroundings import (
    NEARLY,
    UNRELATED,
    recorded_before,
    seeds_differ,
)
from anchorlib.diagnosis.sizes import Measure, Measures
from anchorlib.errors import StoreError
from anchorlib.names import escape
from anchorlib.scope import TRAIN

__all__ = ["ExternalCauses"]

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers that batch norm writes and does not read while it trains."""
NAMED = 3
"""How many tensors that began unequal are named."""
MOST_ELEMENTS = 1 << 22
"""The most elements of an input that are read to compare it sample by sample, in float64."""


@dataclass(slots=True)
class ExternalCauses:
    """Finds rows whose difference came from outside the recording: data, parameters, buffers.

    Such a row is "starts_unequal" where it was unequal from its first record on, and "window_start"
    where the step before it was not recorded. A method that returns None says that the difference
    need not come from outside: then the other questions of `OriginClassifier` decide, and the size
    of the error last.
    """

    frontier: Frontier
    measures: Measures
    changes: Changes
    made_by_code: MadeByCode = field(init=False)
    starts: StartingValues = field(init=False)

    def __post_init__(self) -> None:
        self.made_by_code = MadeByCode(self.frontier, self.changes)
        self.starts = starting_values(self.frontier.alignment)

    def given(self, row: int, pair: int, measure: Measure) -> tuple[str, str] | None:
        """Return the class of a model's input, and why; None if the size of the error decides.

        An input is data from outside, with three exceptions. Where B is given the tensor that A is
        given for another argument, the code exchanged the arguments. Where the runs take rows of it
        from different passes of an earlier step, the code keeps other samples. And the program
        computed the input in three cases: where it is, in both runs, the input of the pass before,
        moved by a small step (`MadeByCode.is_iterate`); where A's and B's input are variants of one
        another or have unequal shapes, and computed records come before them in their pass; and
        where they are a few roundings apart, as results before them are, in the step before too. A
        computed input is "rounding" where results before it differ nearly as much; otherwise None
        is returned.
        row: A's row. pair: its index in the alignment. measure: how far apart A and B are in it.
        """
        if other := self._given_elsewhere(row, pair):
            return "not_rounding", f"B is given here what A is given as {other}"
        if passes := taken_from_other_passes(self.frontier, row):
            return "not_rounding", passes
        related = measure.measured == "shape" or self._are_variants(row, pair, measure)
        if related and measure.error_eps <= LIMIT and self._is_near(row, measure, steps_back=1):
            return "rounding", "what the program computed before it differs as much"
        computed = related and recorded_before(self.frontier, row, Role.COMPUTED)
        if computed or self.made_by_code.is_iterate(row, pair):
            if self._is_near(row, measure):
                return "rounding", "what the program computed before it differs as much"
            return None
        return "starts_unequal", "the model was given something else"

    def _is_near(self, row: int, measure: Measure, steps_back: int = 0) -> bool:
        """Return whether results before an input differ nearly as much as the input itself.

        The program may have computed the input from such results without a trace, for example an
        action from an actor's result and noise.
        steps_back: how many steps before the input's own step are looked at as well.
        """
        a = self.frontier.alignment.a
        rows = self.frontier.alignment.a_row[self.measures.pair]
        before = (a.step[rows] >= a.step[row] - steps_back) & (a.rank[rows] == a.rank[row])
        before &= (a.order[rows] < a.order[row]) & a.of_kind("value")[rows]
        before &= self.frontier.role[rows] != Role.INPUT
        errors = (self.measures["error_eps"] * self.measures["eps"])[before]
        largest = float(np.nanmax(errors)) if np.isfinite(errors).any() else 0.0
        return measure.error_eps * measure.eps <= NEARLY * largest

    def _are_variants(self, row: int, pair: int, measure: Measure) -> bool:
        """Return whether A's and B's input are variants of one another, sample by sample.

        Variants have an alike direction, by their cosine. What the samples of a batch have in
        common, such as the background of images, makes unlike batches alike. So the mean over A's
        samples (the first axis) is taken off both inputs before they are compared. Inputs of which
        not all values are known, or whose samples are all equal, are compared as they are.
        """
        if not measure.cosine_distance < UNRELATED:
            return False
        a, b = self.frontier.alignment.a, self.frontier.alignment.b
        shape = a.shapes[a.shape[row]]
        if len(shape) < 2 or a.figures["numel"][row] > MOST_ELEMENTS:
            return True
        try:
            batches = values(a, row), values(b, int(self.frontier.alignment.b_row[pair]))
        except StoreError:
            return True
        one, other = (None if batch is None else batch.reshape(shape) for batch in batches)
        if one is None or other is None:
            return True
        common = one.mean(axis=0)
        one, other = one - common, other - common
        sizes = float(np.linalg.norm(one) * np.linalg.norm(other))
        return not sizes or float((one * other).sum()) > (1 - UNRELATED) * sizes

    def _given_elsewhere(self, row: int, pair: int) -> str:
        """Return the name of another input of A's call that has the bits of B's input; "" for none.

        row: the input's row in A. pair: its index in the alignment.
        """
        a, b = self.frontier.alignment.a, self.frontier.alignment.b
        row_b = int(self.frontier.alignment.b_row[pair])
        rows = self.frontier.blocks.rows_of(int(self.frontier.block_of[row]))
        rows = rows[rows != row]
        rows = rows[(a.pass_index[rows] == a.pass_index[row]) & (a.call[rows] == a.call[row])]
        equal_rows = rows[(a.digest[rows] == b.digest[row_b]).all(axis=1)]
        model = a.tensors[a.tensor[row]].name.partition(":")[0]
        names = [a.tensors[number].name for number in a.tensor[equal_rows].tolist()]
        others = [name for name in names if name.partition(":")[0] == model]
        return escape(others[0]) if others and a.figures["numel"][row] > 1 else ""

    def is_constant(self, row: int, pair: int) -> bool:
        """Return whether a row is a constant that the code of each run makes.

        False where the seeds differ, and for a loose value that was not anchored.
        row: a buffer or a loose value of A. pair: its index in the alignment.
        """
        row_b = int(self.frontier.alignment.b_row[pair])
        loose = self.frontier.role[row] == Role.LOOSE
        if seeds_differ(self.frontier, row) or (loose and not self.made_by_code.is_anchored(row)):
            return False
        return is_constant(self.frontier, row, row_b, self._is_related)

    def _is_related(self, row: int) -> bool:
        """Return whether a row and its partner are variants of one another, by their cosine.

        False for a row without a partner.
        """
        alignment = self.frontier.alignment
        pair = int(np.searchsorted(alignment.a_row, row))
        matched = alignment.a_row[pair : pair + 1].tolist() == [row]
        if not matched:
            return False
        measure = self.measures.at(int(np.searchsorted(self.measures.pair, pair)))
        return measure.cosine_distance < UNRELATED

    def loose(self, row: int, measure: Measure) -> tuple[str, str] | None:
        """Return the class of a buffer, or of a value whose parents are not known, and why.

        None if the difference need not come from outside. row: A's row. measure: how far apart A
        and B are in it.
        """
        if self.made_by_code.is_written_in_training(row):
            return None
        if self.frontier.predecessor_missing[row]:
            return self._opening(row)
        if recorded_before(self.frontier, row, Role.COMPUTED):
            return None
        before = self._equal_before(row)
        if self._is_written_by_code(row, before):
            return None
        unrelated = not measure.cosine_distance < UNRELATED
        if unrelated or not recorded_before(self.frontier, row, Role.INPUT):
            why = self._made_unseen(row, before, measure)
            return ("starts_unequal", why) if why else None
        return None

    def _made_unseen(self, row: int, before: int | None, measure: Measure) -> str:
        """Say why a loose value counts as data from outside; "" where code may have made it.

        A loose value is one whose parents autograd does not know. before: the last step in which
        the value was equal in both runs; None without one.
        """
        if before is None:
            made_by_code = self.made_by_code.is_told_otherwise(
                row
            ) or self.made_by_code.is_anchored_beside_equal_data(row, measure)
            return "" if made_by_code else "nothing recorded came before it"
        if not measure.cosine_distance < UNRELATED:
            return f"it is other data; at step {before} it was equal"
        if not self._has_lineage(row):
            return f"nothing says what made it; at step {before} it was equal"
        return ""

    def _is_written_by_code(self, row: int, before: int | None) -> bool:
        """Return whether a row is a buffer that code wrote, in the step before, from equal data.

        The buffer was equal in the step before, or earlier in its own step. No data come into a
        model by its buffers: what a step writes there is computed from the step's inputs, which are
        recorded and equal. False where the seeds differ. before: the last step in which the buffer
        was equal; None without one.
        """
        front = self.frontier
        step = int(front.alignment.a.step[row])
        written = front.role[row] == Role.BUFFER and before is not None and before >= step - 1
        return bool(written) and not seeds_differ(front, row)

    def changed_since(self, row: int) -> str:
        """Return a clause on the last step in which a buffer or a loose value was equal, or "".

        "" where there is no such step, and where computed records come before the row in its pass:
        then the row is judged as a value computed in this pass, whatever it was at earlier steps.
        """
        if recorded_before(self.frontier, row, Role.COMPUTED):
            return ""
        before = self._equal_before(row)
        return "" if before is None else f"it was equal at step {before} and has changed since"

    def _has_lineage(self, row: int) -> bool:
        """Return whether the row's rank has stored edges: what its tensors were computed from."""
        a = self.frontier.alignment.a
        return bool(a.edges.get(a.tensors[a.tensor[row]].rank))

    def _equal_before(self, row: int) -> int | None:
        """Return the last step with an earlier record of a row's tensor that is equal in both.

        None where there is no such record.
        """
        a = self.frontier.alignment.a
        earlier_rows = np.flatnonzero((a.tensor == a.tensor[row]) & (a.order < a.order[row]))
        earlier_rows = earlier_rows[self.frontier.status[earlier_rows] == EQUAL]
        return int(a.step[earlier_rows].max()) if len(earlier_rows) else None

    def opened(self, row: int) -> tuple[str, str] | None:
        """Return the class of a parameter that differs where recording begins, and why.

        Recording may also begin anew where A was resumed. None where the step before was recorded
        in the same session, and for a parameter that code makes of recorded ones.
        """
        front = self.frontier
        before, step = self._equal_before(row), int(front.alignment.a.step[row])
        if before is not None and before >= step - 1 and front.predecessor_missing[row]:
            return None  # an evaluation, which has no step before it; the training recorded one
        if front.predecessor_missing[row]:
            return self._opening(row)
        if front.alignment.a.step[row] == 0:
            return "starts_unequal", "parameters differ before the first step"
        block = int(front.block_of[row])
        before = front.blocks_before(np.array([block]))[0]
        if front.blocks.attempt[before] != front.blocks.attempt[block]:
            return "window_start", "the run was resumed here"
        return None

    def _opening(self, row: int) -> tuple[str, str] | None:
        """Return the class of a row whose step has no recorded step before it, and why.

        None for a parameter that code makes of recorded ones.
        """
        if self.made_by_code.is_average(row):
            return None
        return "window_start", "the step before was not recorded"

    def began_unequal(self, row: int, measure: Measure) -> str:
        """Say which unrecorded tensors that a row reads began with other values in B; else "".

        A value reads the parameters that its lineage names, and what its module holds itself, which
        may be a buffer. "" where the value's shapes differ, since code decides shapes and not what
        the tensors hold, and for kinds other than `value`.
        """
        if not self.starts.unequal or measure.measured == "shape":
            return ""
        a = self.frontier.alignment.a
        own = a.tensors[a.tensor[row]]
        if own.kind != "value":
            return ""
        read = set(self.frontier.ancestry(row).unrecorded)
        unread = STATISTICS if a.phases[a.phase[row]] == TRAIN else ()
        names = [
            name
            for rank, name in self.starts.unequal
            if rank == own.rank
            and (name in read or name.rpartition(".")[0] == own.name)
            and name.rpartition(".")[2] not in unread
        ]
        if not names:
            return ""
        shown = ", ".join(map(escape, names[:NAMED])) + ", …" * (len(names) > NAMED)
        return f"B began with other values of {shown}"
