"""The class of a computed row, by the size of its error: whether rounding explains it.

The size counts in roundings of one operation (`rounding`). An error beyond that is still no fault
where the noise runs differ as much (`noise`), where the terms of a sum cancel or come in another
order, or where all that is learned in the step agrees but for a few roundings.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from anchorlib import dtypes
from anchorlib.amounts import figure
from anchorlib.diagnosis.causes import (
    DIFFERS,
    EQUAL,
    Frontier,
    Overflows,
    Role,
    Skips,
    overflows,
    skips,
)
from anchorlib.diagnosis.judgement.changes import Changes, parted_since
from anchorlib.diagnosis.judgement.noise import Covering, Envelope
from anchorlib.diagnosis.judgement.origins import LIMIT, LIMIT_LOW, equal_learning, share_of_reader
from anchorlib.diagnosis.judgement.rounding import (
    Resummations,
    RoundingBound,
    differs_by_row_factors,
    is_rest_of_terms,
    rounding_bound,
)
from anchorlib.diagnosis.judgement.surroundings import (
    NEARLY,
    UNRELATED,
    are_masked,
    differs_before,
    recorded_before,
    seeds_differ,
)
from anchorlib.diagnosis.sizes import Measure, Measures, coarsest_formats
from anchorlib.scope import TRAIN

__all__ = ["ComputedRows"]

EPS32 = 2.0**-23
DRIFT = 1e-3
"""The relative error up to which values may have drifted apart by rounding; faults make larger
ones."""


@dataclass(slots=True)
class ComputedRows:
    """Finds the class of a computed row by the size of its error.

    A computed row is one whose difference does not come from outside, nor from what is missing in
    the records: the program made it, and its class says whether rounding explains how far apart A
    and B are. "starts_unequal" remains possible where the row reads data, parameters or random
    numbers that were not recorded.

    noise: how far apart noise runs are; None without noise runs.
    agreed: where the runs call modules differently for equal work, the step whose other records
    were found equal but for rounding; None where they do not.
    """

    frontier: Frontier
    measures: Measures
    changes: Changes
    noise: Envelope | None = None
    agreed: int | None = None
    skips: Skips = field(init=False)
    overflows: Overflows = field(init=False)
    covering: Covering = field(init=False)
    resummations: Resummations = field(init=False)
    _parted_since: float = field(init=False)
    _equal_learning: bool | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.skips = skips(self.frontier.alignment)
        self.overflows = overflows(self.frontier.alignment, self.skips)
        self.covering = Covering(self.frontier, self.measures, self.noise)
        self.resummations = Resummations(self.frontier)
        self._parted_since = parted_since(self.frontier)

    def of(self, row: int, pair: int, measure: Measure) -> tuple[str, str]:
        """Return the class of a computed row, and why.

        The class follows from NaN and infinity, from random operations, and from the size of the
        error. row: A's row. pair: the row's index in the alignment. measure: how far apart A and B
        are in it.
        """
        if measure.nonfinite and self.overflows.of(np.array([row]))[0]:
            times = figure(self.overflows.times(row))
            return "rounding", f"a loss scale {times} times the other's overflows{self.alone(row)}"
        if measure.nonfinite and are_masked(self.frontier.alignment, np.array([row]))[0]:
            return self._large(row, measure, "infinite at other elements, as by another mask")
        if measure.nonfinite and not self.skips.in_both(np.array([row]))[0]:
            return "nonfinite", "NaN or infinity in one run alone" + self.alone(row)
        if measure.nonfinite and np.isnan(measure.error_eps):
            return "rounding", "no element is finite in both, and both runs skipped the step"
        cls, note = self._size(row, pair, measure)
        if cls != "starts_unequal" and self._random(row):
            return "nondeterministic", "it differs between the noise runs too"
        return cls, note

    def alone(self, row: int) -> str:
        """Return a clause that says that GradScaler skipped the step in one run alone, or ""."""
        run = self.skips.alone(row)
        return f"; the scaler skipped the step in {run} only" if run else ""

    def is_decided_before(self, row: int) -> bool:
        """Return whether a row reads an index that differs, and that rounding may have decided.

        Rounding may have decided it where a value before the row differs already.
        """
        return self.changes.other_index(row) and differs_before(self.frontier, row)

    def _random(self, row: int) -> bool:
        """Return whether a row's tensor is random, as the noise runs show it; False without them.

        It is random where any of its records differs between A and a noise run, or between two
        noise runs, though its inputs are equal.
        """
        a = self.frontier.alignment.a
        tensor = a.tensors[a.tensor[row]]
        return self.noise is not None and (tensor.name, tensor.kind) in self.noise.random

    def _size(self, row: int, pair: int, measure: Measure) -> tuple[str, str]:
        """Return the class of a row by how large its difference is, and why.

        "starts_unequal" is possible too, where unrecorded data may explain the difference.
        """
        a = self.frontier.alignment.a
        if measure.measured == "shape":
            return self._reshaped(row, pair)
        if dtypes.dtype(a.dtypes[a.dtype[row]]).family in ("int", "bool"):
            share = (
                f"{measure.share_differing:.2%} of its elements"
                if (np.isfinite(measure.share_differing))
                else "elements"
            )
            return "not_rounding", f"{share} differ, and integers do not round"
        row_b = int(self.frontier.alignment.b_row[pair])
        ops_b = tuple(op.name for op in self.changes.calls.operations(row, elsewhere=True)[1])
        error = rounding_bound(self.frontier, row, row_b, measure, ops_b)
        if np.isnan(error.error):
            return "rounding", "no values were kept; its size is not known"
        if self._is_told_otherwise(row) and not (
            error.rounding and self._counts_otherwise(row, measure)
        ):
            return "not_rounding", error.note
        if error.rounding:
            return "rounding", error.note
        if self.covering.excuses(row, pair, error):
            return "rounding", "the noise runs differ as much"
        return self._added_up_again(row, row_b, measure, error)

    def _added_up_again(
        self, row: int, row_b: int, measure: Measure, error: RoundingBound
    ) -> tuple[str, str]:
        """Return the class of a row whose error exceeds one operation's rounding, and why.

        The class is "rounding" if the order or the cancelling of the terms of the row's sum
        explains the error; otherwise `_large` decides. error: the bound of an operation's rounding.
        """
        resummed = self.resummations.of(row, row_b, measure, error.eps)
        if resummed is not None and resummed.rounding:
            return "rounding", resummed.note
        if is_rest_of_terms(self.frontier, row, row_b):
            return "rounding", "its bits show that its terms cancel; judged against them"
        if differs_by_row_factors(self.frontier, row, row_b):
            return "rounding", "each of its rows is the other's times a factor that rounding makes"
        notes = (error.note, resummed.note if resummed else "")
        return self._large(row, measure, "; ".join(filter(None, notes)))

    def _agrees_with_all_learnt(self, row: int, measure: Measure) -> bool:
        """Return whether a row is off by few roundings, and so is all that is learned in its step.

        Code that is written differently, such as a probability computed from logarithms, may
        round several times where the other run rounds once. The step must be the first that
        differs. False for kinds other than values and gradients, outside of training, and for
        formats coarser than float32.

        Where the runs call modules differently for equal work, a value or gradient of the step
        `agreed` gives True, whatever its error: that whole step was found equal but for rounding
        already.
        """
        a = self.frontier.alignment.a
        first = int(a.step[self.frontier.alignment.a_row[self.measures.pair]].min())
        kind = a.tensors[a.tensor[row]].kind
        if kind not in ("value", "grad", "pass_grad") or a.phases[a.phase[row]] != TRAIN:
            return False
        if a.step[row] == self.agreed:
            return True
        if a.step[row] != first or measure.eps > EPS32 or not self._few(row, measure):
            return False
        if self._equal_learning is None:
            self._equal_learning = equal_learning(self.frontier.alignment, self.measures, first)
        return self._equal_learning

    def _few(self, row: int, measure: Measure) -> bool:
        """Return whether an error is a few roundings of its row, or of a number made from the row.

        A loss may be a sum of a large term and a penalty near zero, whose own terms cancel. The
        penalty's error may be many roundings of the penalty, and yet few of the loss.
        """
        error = measure.error_eps
        if error > LIMIT:
            error *= share_of_reader(self.frontier.alignment, self.measures, row)
        return bool(error <= LIMIT)

    def _is_told_otherwise(self, row: int) -> bool:
        """Return whether the runs state, in headers or edges, different formulas for a row.

        Different factors in tensors count only where the seeds are equal. True also for a row that
        was computed from recorded tensors and from parameters without records, after an optimizer
        stepped with settings that differ.
        """
        if self.changes.other_settings(row) or self.changes.other_number(row):
            return True
        lacking = bool(self.frontier.only_parameters_missing[row])
        if lacking and self.frontier.alignment.a.step[row] > self._parted_since:
            return True
        return self.changes.other_factor(row) and not seeds_differ(self.frontier, row)

    def _counts_otherwise(self, row: int, measure: Measure) -> bool:
        """Return whether a row is a single number that the runs add up from other terms.

            missed[both].sum() / both.sum()         all pairs of a symmetric map
            missed[upper].sum() / upper.sum()       each pair once

        The number by which they divide differs then as their sum does. All that is learned in the
        step agrees but for a few roundings.
        """
        a = self.frontier.alignment.a
        single = int(a.figures["numel"][row]) == 1 and not self.changes.other_settings(row)
        return single and self._agrees_with_all_learnt(row, measure)

    def _large(self, row: int, measure: Measure, note: str) -> tuple[str, str]:
        """Return the class of an error beyond the rounding of one operation, and why.

        The error is a fault, unless the whole step is equal but for a few roundings, or rounding
        before the row, unrecorded data, parameters or random numbers may explain the error.
        note: what is said of a fault, as the reason of its class.
        """
        if self._agrees_with_all_learnt(row, measure):
            return "rounding", "a few roundings in a row, as in all that is learned in the step"
        if self.is_decided_before(row):
            return "rounding", "it reads an index that rounding before it may have decided"
        if self._follows_rounding_before(row, measure):
            return "rounding", "what it reads without a record may follow from rounding before"
        front = self.frontier
        unrelated = measure.cosine_distance >= UNRELATED
        untracked, seeds = bool(front.ancestry(row).untracked), seeds_differ(self.frontier, row)
        parameters = bool(front.only_parameters_missing[row])
        data = (untracked or parameters) and not recorded_before(self.frontier, row, Role.INPUT)
        data = data and not self._made_of_equal_data(row)
        unknown = " and ".join(["parameters"] * parameters + ["data"] * data)
        foreign = unknown and (unrelated or (parameters and seeds))
        foreign = foreign and not self._in_another_mode(row)
        if foreign and not (unrelated and not seeds and self.changes.other_code(row)):
            return "starts_unequal", f"its {unknown} were not recorded, and may differ"
        if untracked and seeds:
            return "starts_unequal", "it reads a mask or random numbers, and the seeds differ"
        if self._follows_an_unequal_start(row):
            return "starts_unequal", "a tensor that it reads may follow from what began unequal"
        return "not_rounding", note

    def _follows_rounding_before(self, row: int, measure: Measure) -> bool:
        """Return whether a row is off nearly as much as values that were computed before it.

        The row reads a tensor of which no record tells what it was computed from, such as a flow
        that was detached, or an image of an earlier step out of a pool. Values of its rank that
        were computed before it, in its step or the step before, differ as well. The row's error is
        NEARLY times as large as their errors usually are (the median) and DRIFT, at most, or it is
        a few eps of a format coarser than float32 in which they were computed (LIMIT_LOW).
        """
        front = self.frontier
        if not front.ancestry(row).untracked:
            return False
        a, rows = front.alignment.a, front.alignment.a_row[self.measures.pair]
        before = (a.order[rows] < a.order[row]) & (a.rank[rows] == a.rank[row])
        before &= (a.step[rows] >= a.step[row] - 1) & (front.role[rows] == Role.COMPUTED)
        at = np.flatnonzero(before & a.of_kind("value")[rows])
        errors = (self.measures["error_eps"] * self.measures["eps"])[at]
        if not np.isfinite(errors).any():
            return False
        coarsest = coarsest_formats(front.alignment, self.measures, at).max()
        limit = min(NEARLY * float(np.median(errors[np.isfinite(errors)])), DRIFT)
        limit = max(limit, LIMIT_LOW * coarsest if coarsest > EPS32 else 0.0)
        return bool(measure.error_eps * measure.eps <= limit)

    def _follows_an_unequal_start(self, row: int) -> bool:
        """Return whether unrecorded tensors that a row reads differ, as what began unequal may do.

        The runs compute the row by equal operations, of which an operand without a record differs:
        a target, for example, that the program computed without a graph. Parameters or inputs of
        the row's step, recorded before the row, differ as well, and no other record explains these.
        """
        front = self.frontier
        a = front.alignment.a
        before = (a.step == a.step[row]) & (a.rank == a.rank[row]) & (a.order < a.order[row])
        before &= (front.status == DIFFERS) & ~front.explained
        began = before & np.isin(front.role, (Role.PARAMETER, Role.INPUT))
        return bool(began.any()) and self.changes.other_operand(row)

    def _in_another_mode(self, row: int) -> bool:
        """Return whether one run alone is in eval mode in a row's step, as its records show.

        Then modules such as batch norm compute otherwise, whatever their data are.
        """
        alignment = self.frontier.alignment
        step = int(alignment.a.step[row])
        offsets = (0, alignment.step_offset)
        return any(
            since is not None and since <= step + offset
            for since, offset in zip(alignment.eval_since, offsets, strict=True)
        )

    def _made_of_equal_data(self, row: int) -> bool:
        """Return whether unrecorded data from which a gradient was computed are equal.

        From different data the program would have computed different results. So the data of a
        parameter's gradient are equal if all results of the parameter's module in the step have
        equal bits in both runs. The data of any other gradient are equal if all values of its pass
        have equal bits, and one of them is a single number, such as the loss: that is computed from
        the targets too. False for rows that are no gradient, and where there is no such result.
        """
        front = self.frontier
        a = front.alignment.a
        own = a.tensors[a.tensor[row]]
        if own.kind not in ("grad", "pass_grad"):
            return False
        here = (a.step == a.step[row]) & (a.phase == a.phase[row]) & (a.attempt == a.attempt[row])
        if front.role[row] == Role.OPTIMIZER:
            made = here & a.of_tensor(own.name.rpartition(".")[0], "value", own.rank)
            return bool(made.any()) and bool((front.status[made] == EQUAL).all())
        made = here & a.of_kind("value") & (a.rank == own.rank)
        made &= a.pass_index == a.pass_index[row]
        numbers = made & (a.figures["numel"] == 1)
        return bool(numbers.any()) and bool((front.status[made] == EQUAL).all())

    def _reshaped(self, row: int, pair: int) -> tuple[str, str]:
        """Return the class of a row whose shapes differ, and why.

        Other shapes are a fault, unless the number of samples in unrecorded data may explain them.
        That is possible only for the first result of a pass, where equal operations made it and
        only the sizes of its first axis differ. All other sizes are decided by the program, or
        follow from a recorded tensor.
        """
        front = self.frontier
        a, b = front.alignment.a, front.alignment.b
        mine, other = a.shapes[a.shape[row]], b.shapes[b.shape[front.alignment.b_row[pair]]]
        ops = [[one.name for one in side] for side in self.changes.calls.operations(row)]
        samples = len(mine) == len(other) and mine[1:] == other[1:] and ops[0] == ops[1]
        carried = any(
            link.kind == "value" and link.steps_back for link in front.ancestry(row).parents
        )
        seen = any(recorded_before(self.frontier, row, one) for one in (Role.INPUT, Role.COMPUTED))
        value = a.tensors[a.tensor[row]].kind == "value"
        if value and samples and not (carried or seen):
            return "starts_unequal", "its data were not recorded, and their number may differ"
        return "not_rounding", "the shapes differ"
