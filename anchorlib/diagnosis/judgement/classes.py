"""The class of each origin: what kind of difference begins there.

rounding          rounding explains it
not_rounding      a fault: more than rounding, or the runs state different computations
nonfinite         NaN or infinity in one run alone
nondeterministic  the noise runs differ there too, though their inputs are equal
starts_unequal    it came from outside: data, parameters or seeds were unequal from the start
window_start      what led to it was not recorded, as before the first recorded step
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from anchorlib import dtypes
from anchorlib.amounts import figure
from anchorlib.diagnosis.causes import (
    EQUAL,
    UNMATCHED,
    Frontier,
    Overflows,
    Role,
    Skips,
    StartingValues,
    overflows,
    plain,
    skips,
    starting_values,
)
from anchorlib.diagnosis.judgement.changes import (
    Changes,
    is_constant,
    parted_since,
    passes_apart,
    stepped_again,
    unreached,
    untrained_since,
)
from anchorlib.diagnosis.judgement.noise import Covering, Envelope
from anchorlib.diagnosis.judgement.origins import LIMIT, equal_learning
from anchorlib.diagnosis.judgement.rounding import (
    LEARNT,
    Resummations,
    Severity,
    is_rest_of_terms,
    severity,
)
from anchorlib.diagnosis.judgement.sparse_sums import INDICES
from anchorlib.diagnosis.sizes import Measure, Measures
from anchorlib.names import escape, join
from anchorlib.scope import TRAIN

__all__ = ["BAD", "Classes"]

BAD = ("not_rounding", "nonfinite")
UNRELATED = 0.3
"""The cosine distance from which two tensors are not variants of one another."""

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers that batch norm writes and does not read while it trains."""

NAMED = 3
"""How many tensors that began unequal are named."""

EPS32 = 2.0**-23
FAR = 1000 * EPS32
"""The relative error in a later pass that no rounding of parameters between passes can make."""

ENDED_BY, OPTIMIZERS = "steps.ended_by", ("optimizer", "optimizer2")

_UNSEEN = (
    "what led to it was not recorded",
    "what the optimizer held before that step is not known of both (was its state restored?)",
)


def recorded_before(frontier: Frontier, row: int, role: Role) -> bool:
    """Return whether records of this role, such as inputs, come before a row in its pass."""
    a, block = frontier.alignment.a, int(frontier.block_of[row])
    rows = frontier.blocks.rows_of(block)
    roles = frontier.layouts[int(frontier.blocks.layout[block])].role
    before = (a.order[rows] < a.order[row]) & (a.pass_index[rows] == a.pass_index[row])
    return bool((before & (roles == role)).any())


def seeds_differ(frontier: Frontier, row: int) -> bool:
    """Return whether the two runs state different seeds for the rank of a row."""
    alignment = frontier.alignment
    rank = alignment.a.tensors[alignment.a.tensor[row]].rank
    seeds = [
        table.header.get(rank, {}).get("torch.initial_seed") for table in (alignment.a, alignment.b)
    ]
    return None not in seeds and seeds[0] != seeds[1]


@dataclass(slots=True)
class Outside:
    """Finds rows whose difference came from outside the recording: data, parameters, buffers.

    Such a row is "starts_unequal" where it was unequal from its first record on, and "window_start"
    where the step before it was not recorded. Each method that returns a class returns None where
    the program may have computed the row: then the size of its error decides.
    """

    frontier: Frontier
    measures: Measures
    starts: StartingValues = field(init=False)

    def __post_init__(self) -> None:
        self.starts = starting_values(self.frontier.alignment)

    def given(self, row: int, pair: int, measure: Measure) -> tuple[str, str] | None:
        """Return the class of a model's input, and why; None if its size decides.

        An input is data from outside, with two exceptions. Where the two inputs are variants of one
        another and come after computed records of their pass, the program computed the input. And
        where B is given a tensor for one argument that A is given for another, the code exchanged
        the arguments.
        """
        if other := self._given_elsewhere(row, pair):
            return "not_rounding", f"B is given here what A is given as {other}"
        related = measure.cosine_distance < UNRELATED
        if related and recorded_before(self.frontier, row, Role.COMPUTED):
            return None
        return "starts_unequal", "the model was given something else"

    def _given_elsewhere(self, row: int, pair: int) -> str:
        """Return the name of another input of A's call that has the bits of B's; else ""."""
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
        """Return whether a row is a buffer that code makes and never changes, with equal seeds."""
        row_b = int(self.frontier.alignment.b_row[pair])
        return not seeds_differ(self.frontier, row) and is_constant(
            self.frontier, row, row_b, self._is_related
        )

    def _is_related(self, row: int) -> bool:
        """Whether a row and its partner are variants of one another, by their cosine distance."""
        alignment = self.frontier.alignment
        pair = int(np.searchsorted(alignment.a_row, row))
        matched = alignment.a_row[pair : pair + 1].tolist() == [row]
        if not matched:
            return False
        measure = self.measures.at(int(np.searchsorted(self.measures.pair, pair)))
        return measure.cosine_distance < UNRELATED

    def loose(self, row: int, measure: Measure) -> tuple[str, str] | None:
        """Return the class of a buffer, or of a value whose parents are not known, and why.

        None if its size decides.
        """
        if self.frontier.opening[row]:
            return "window_start", "the step before was not recorded"
        if recorded_before(self.frontier, row, Role.COMPUTED):
            return None
        before = self._equal_before(row)
        unrelated = not measure.cosine_distance < UNRELATED
        if unrelated or not recorded_before(self.frontier, row, Role.INPUT):
            if before is None:
                return "starts_unequal", "nothing recorded came before it"
            if unrelated:
                return "starts_unequal", f"it is other data; at step {before} it was equal"
            if not self._has_lineage(row):
                return "starts_unequal", f"nothing says what made it; at step {before} it was equal"
        return None

    def changed_since(self, row: int) -> str:
        """Say that a buffer or a loose value was equal at an earlier step; "" where it was not.

        "" also where computed records of its pass come before it: then it is judged as computed in
        this pass, whatever it was at earlier steps.
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
        in the same session.
        """
        front = self.frontier
        before, step = self._equal_before(row), int(front.alignment.a.step[row])
        if before is not None and before >= step - 1 and front.opening[row]:
            return None  # an evaluation, which has no step before it; the training recorded one
        if front.opening[row]:
            return "window_start", "the step before was not recorded"
        if front.alignment.a.step[row] == 0:
            return "starts_unequal", "parameters differ before the first step"
        block = int(front.block_of[row])
        before = front.blocks_before(np.array([block]))[0]
        if front.blocks.attempt[before] != front.blocks.attempt[block]:
            return "window_start", "the run was resumed here"
        return None

    def began_unequal(self, row: int, measure: Measure) -> str:
        """Say which unrecorded tensors that a row reads began with other values in B; else "".

        A value reads the parameters that its lineage names, and what its module holds itself, which
        may be a buffer. Another shape of the value is due to code, not to what its tensors hold.
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


@dataclass(frozen=True, slots=True)
class MissingRecords:
    """Finds rows whose difference may have begun in records that are missing: "window_start".

    Without those records nobody can say whether the row's own operation made the difference.
    """

    frontier: Frontier

    def before(self, row: int) -> str:
        """Say that records between a row and those that it depends on may be missing; else ""."""
        role = Role(int(self.frontier.role[row]))
        return _UNSEEN[role == Role.OPTIMIZER] if self._unseen_window(row) else ""

    def gradients(self, row: int, measure: Measure) -> str:
        """Say which gradients are missing that a row depends on; "" where none are.

        They are an optimizer's parents without a partner in B, or gradients of either run that
        changed parameters.
        """
        if self._lacks_gradients(row):
            return f"what it was made of is not in B: {self._orphans(row)}"
        if self._unseen_gradients(row) and not self._stands_still(row, measure):
            return "the gradients that changed parameters were not recorded"
        return ""

    def _unseen_window(self, row: int) -> bool:
        """Whether records may be missing between a row and the records that it depends on.

        Records are missing where recording began late, or where the row's mode keeps only some
        observations.
        """
        front = self.frontier
        if front.lacking[row] and front.opening[row]:
            return True
        a = front.alignment.a
        mode = a.tensors[a.tensor[row]].mode
        folds = not plain(mode) and ("window" in mode or mode.startswith("every_n"))
        return folds or (not plain(mode) and bool(a.pass_index[row] or a.count[row] > 1))

    def _lacks_gradients(self, row: int) -> bool:
        """Whether an optimizer's row has parents without a partner in B, for no known reason.

        B may have computed such a parent, and only not recorded it. The reason is known where B's
        backward did not reach a value, and where the runs have different passes in the step.
        """
        front = self.frontier
        if front.role[row] != Role.OPTIMIZER or not front.orphaned[row]:
            return False
        kind = front.alignment.a.tensors[front.alignment.a.tensor[row]].kind
        if kind in ("grad", "pass_grad") and unreached(front, row):
            return False
        return not passes_apart(front, row)

    def _orphans(self, row: int) -> str:
        """Return the names of the first few parents of a row that A alone recorded, as text."""
        a = self.frontier.alignment.a
        rows = [
            parent
            for parent in self.frontier.parents(row)
            if self.frontier.status[parent] == UNMATCHED
        ]
        tensors = [a.tensors[a.tensor[one]] for one in rows]
        return ", ".join(escape(join(tensor.name, tensor.kind)) for tensor in tensors[:3])

    def _unseen_gradients(self, row: int) -> bool:
        """Whether a row depends on a parameter that unrecorded gradients may have changed."""
        front = self.frontier
        a = front.alignment.a
        step, pass_index = int(a.step[row]), int(a.pass_index[row])
        if not (step or pass_index):
            return False
        if front.role[row] == Role.PARAMETER:
            names: Iterable[str] = [a.tensors[a.tensor[row]].name]
        else:
            names = front.ancestry(row).unrecorded
        layout = front.layouts[int(front.blocks.layout[front.block_of[row]])]
        kinds = ("pass_grad",) if pass_index else ("pass_grad", "grad", "updated")
        with_gradients = {key[0].removesuffix(INDICES) for key in layout.keys if key[1] in kinds}
        if front.role[row] == Role.PARAMETER:
            rank = a.tensors[a.tensor[row]].rank
            learnt = {
                tensor.name for tensor in a.tensors if tensor.kind in LEARNT and tensor.rank == rank
            }
            if learnt and not learnt.intersection(names):
                return False  # no optimizer holds this parameter: code moves it, as a model's copy
        return any(name not in with_gradients for name in names)

    def _stands_still(self, row: int, measure: Measure) -> bool:
        """Return whether a parameter is far off in a later pass, though no optimizer stepped since.

        It was equal in an earlier pass. Other code, as SAM, may also move parameters between
        passes. But where everything that was recorded of the earlier passes is equal, such code
        does not move them far apart.
        """
        front = self.frontier
        a = front.alignment.a
        far = measure.eps <= EPS32 and measure.error_eps * measure.eps > FAR
        earlier_passes = (a.tensor == a.tensor[row]) & (a.step == a.step[row])
        earlier_passes &= (a.pass_index < a.pass_index[row]) & (a.attempt == a.attempt[row])
        if not (far and front.role[row] == Role.COMPUTED and earlier_passes.any()):
            return False
        rank = a.tensors[a.tensor[row]].rank
        headers = [table.header.get(rank, {}) for table in (a, front.alignment.b)]
        alone = all(
            header.get(ENDED_BY) == header.get(OPTIMIZERS[0], "") and OPTIMIZERS[1] not in header
            for header in headers
        )
        return alone and bool((front.status[earlier_passes] == EQUAL).all())


@dataclass(slots=True)
class ComputedRows:
    """Finds the class of a computed row by the size of its error.

    A computed row is one whose difference does not come from outside, nor from what is missing in
    the records: the program made it, and its class says whether rounding explains how far apart A
    and B are. "starts_unequal" remains possible where the row reads data, parameters or random
    numbers that were not recorded.

    agreed: see `judge.Judge`.
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

        It follows from NaN and infinity, from random operations, and from the size of the error.
        """
        if measure.nonfinite and self.overflows.of(np.array([row]))[0]:
            times = figure(self.overflows.times(row))
            return "rounding", f"a loss scale {times} times the other's overflows{self.alone(row)}"
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

    def _random(self, row: int) -> bool:
        """Return whether a row differs between the noise runs, though its inputs are equal."""
        a = self.frontier.alignment.a
        tensor = a.tensors[a.tensor[row]]
        return self.noise is not None and (tensor.name, tensor.kind) in self.noise.random

    def _size(self, row: int, pair: int, measure: Measure) -> tuple[str, str]:
        """Return "rounding" or "not_rounding" by how large the difference is, and why."""
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
        error = severity(self.frontier, row, row_b, measure, ops_b)
        if np.isnan(error.error):
            return "rounding", "no values were kept; its size is not known"
        if self._is_told_otherwise(row):
            return "not_rounding", error.note
        if error.rounding:
            return "rounding", error.note
        if self.covering.excuses(row, pair, error):
            return "rounding", "the noise runs differ as much"
        return self._added_up_again(row, row_b, measure, error)

    def _added_up_again(
        self, row: int, row_b: int, measure: Measure, error: Severity
    ) -> tuple[str, str]:
        """Return the class of a row whose error exceeds one operation's rounding, and why.

        It is "rounding" if the order or the cancelling of the terms of its sum explains the error.
        """
        resummed = self.resummations.of(row, row_b, measure, error.eps)
        if resummed is not None and resummed.rounding:
            return "rounding", resummed.note
        if is_rest_of_terms(self.frontier, row, row_b):
            return "rounding", "its bits show that its terms cancel; judged against them"
        notes = (error.note, resummed.note if resummed else "")
        return self._large(row, measure, "; ".join(filter(None, notes)))

    def _agrees_with_all_learnt(self, row: int, measure: Measure) -> bool:
        """Return whether a row is off by few roundings, and so is all else in its step.

        The step is the first that differs; False for rows of later steps, and for kinds other than
        values and gradients. Code that is written differently rounds several times where the other
        run rounds once, as a probability that is computed from logarithms: each rounds by its own
        size. Where the runs call modules differently for equal work, rows of the step `agreed` give
        True: that step was found equal but for rounding before the records of these calls were left
        out.
        """
        a = self.frontier.alignment.a
        few = measure.eps <= EPS32 and measure.error_eps <= LIMIT
        first = int(a.step[self.frontier.alignment.a_row[self.measures.pair]].min())
        kind = a.tensors[a.tensor[row]].kind
        if kind not in ("value", "grad", "pass_grad") or a.phases[a.phase[row]] != TRAIN:
            return False
        if a.step[row] == self.agreed:
            return True
        if not few or a.step[row] != first:
            return False
        if self._equal_learning is None:
            self._equal_learning = equal_learning(self.frontier.alignment, self.measures, first)
        return self._equal_learning

    def _is_told_otherwise(self, row: int) -> bool:
        """Return whether the runs state, in headers or edges, different formulas for a row.

        Different factors in tensors count only where the seeds are equal. True also for a row that
        lacks only a parameter's record, after an optimizer stepped with settings that differ.
        """
        if self.changes.other_settings(row) or self.changes.other_number(row):
            return True
        lacking = bool(self.frontier.parameter_lacking[row])
        if lacking and self.frontier.alignment.a.step[row] > self._parted_since:
            return True
        return self.changes.other_factor(row) and not seeds_differ(self.frontier, row)

    def _large(self, row: int, measure: Measure, note: str) -> tuple[str, str]:
        """Return the class of an error beyond the rounding of one operation, and why.

        It is a fault, unless the whole step is equal but for a few roundings, or unrecorded data
        may explain the error.
        """
        if self._agrees_with_all_learnt(row, measure):
            return "rounding", "a few roundings in a row, as in all that is learned in the step"
        front = self.frontier
        unrelated = measure.cosine_distance >= UNRELATED
        untracked, seeds = bool(front.ancestry(row).untracked), seeds_differ(self.frontier, row)
        parameters = bool(front.parameter_lacking[row])
        data = (untracked or parameters) and not recorded_before(self.frontier, row, Role.INPUT)
        data = data and not self._made_of_equal_data(row)
        unknown = " and ".join(["parameters"] * parameters + ["data"] * data)
        foreign = unknown and (unrelated or (parameters and seeds))
        if foreign and not (unrelated and not seeds and self.changes.other_code(row)):
            return "starts_unequal", f"its {unknown} were not recorded, and may differ"
        if untracked and seeds:
            return "starts_unequal", "it reads a mask or random numbers, and the seeds differ"
        return "not_rounding", note

    def _made_of_equal_data(self, row: int) -> bool:
        """Return whether a parameter's gradient reads equal data, though no record holds them.

        What its module made of these data has equal bits in both runs, in each pass of the step.
        Of other data it would have made something else.
        """
        front = self.frontier
        a = front.alignment.a
        own = a.tensors[a.tensor[row]]
        if own.kind not in ("grad", "pass_grad") or front.role[row] != Role.OPTIMIZER:
            return False
        module = (own.name.rpartition(".")[0], "value", own.rank)
        made = [(one.name, one.kind, one.rank) == module for one in a.tensors]
        same_place = (a.phase == a.phase[row]) & (a.attempt == a.attempt[row])
        rows = np.flatnonzero(np.array(made, bool)[a.tensor] & same_place & (a.step == a.step[row]))
        return bool(len(rows)) and bool((front.status[rows] == EQUAL).all())

    def _reshaped(self, row: int, pair: int) -> tuple[str, str]:
        """Return the class of a row whose shapes differ, and why.

        It is a fault, unless unrecorded data may explain it. The first result of a pass has as many
        samples as the data of the pass. All other axes are decided by the program, and so is a
        number of samples that follows from a recorded tensor.
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


@dataclass(slots=True)
class Classes:
    """Finds the class of an origin, a row of A that differs although all its parents are equal.

    Questions are asked in a fixed order (`_class`), and the first that is answered decides: did the
    difference come from outside (`outside`), are records missing that led to it
    (`missing_records`), did an optimizer step otherwise? What none of them answers was computed,
    and the size of its error decides (`computed_rows`).

    agreed: see `judge.Judge`.
    """

    frontier: Frontier
    measures: Measures
    changes: Changes
    noise: Envelope | None = None
    agreed: int | None = None
    outside: Outside = field(init=False)
    missing: MissingRecords = field(init=False)
    computed: ComputedRows = field(init=False)
    skips: Skips = field(init=False)
    overflows: Overflows = field(init=False)
    covering: Covering = field(init=False)

    def __post_init__(self) -> None:
        self.outside = Outside(self.frontier, self.measures)
        self.missing = MissingRecords(self.frontier)
        self.computed = ComputedRows(
            self.frontier, self.measures, self.changes, self.noise, self.agreed
        )
        self.skips, self.overflows = self.computed.skips, self.computed.overflows
        self.covering = self.computed.covering

    def of(self, row: int) -> tuple[str, str]:
        """Return the class of an origin, as "rounding", and the reason in words ("" if needless).

        row: the origin's row in A's table.
        """
        pair = self.pair(row)
        return self._class(row, pair, self.measure(pair))

    def alone(self, row: int) -> str:
        """Return a clause that says that GradScaler skipped the step in one run alone, or ""."""
        return self.computed.alone(row)

    def measure(self, pair: int) -> Measure:
        """Return how far apart the two records of a pair are."""
        return self.measures.at(int(np.searchsorted(self.measures.pair, pair)))

    def pair(self, row: int) -> int:
        """Return the index, in the alignment, of the pair that holds a row of A."""
        return int(np.searchsorted(self.frontier.alignment.a_row, row))  # pairs are in A's order

    def _class(self, row: int, pair: int, measure: Measure) -> tuple[str, str]:
        role = Role(int(self.frontier.role[row]))
        if role in (Role.INPUT, Role.LOOSE, Role.BUFFER) and row not in self.frontier.copies:
            return self._unmade(row, pair, measure)
        if role == Role.PARAMETER and not self.frontier.alignment.a.pass_index[row]:
            opened = self.outside.opened(row)
            if opened:
                return opened
        if why := self.missing.before(row):
            return "window_start", why
        if why := self._stepped_otherwise(row):
            return "not_rounding", why
        if why := self.missing.gradients(row, measure):
            return "window_start", why
        if why := self.outside.began_unequal(row, measure):
            return "starts_unequal", why
        return self.computed.of(row, pair, measure)

    def _unmade(self, row: int, pair: int, measure: Measure) -> tuple[str, str]:
        """Return the class of a row without known parents, and why.

        Such a row is an input, a buffer, or a loose value, whose parents autograd does not know.
        """
        role = self.frontier.role[row]
        if role == Role.INPUT:
            given = self.outside.given(row, pair, measure)
            return given or self.computed.of(row, pair, measure)
        if role == Role.BUFFER and self.outside.is_constant(row, pair):
            return self.computed.of(row, pair, measure)
        if loose := self.outside.loose(row, measure):
            return loose
        cls, note = self.computed.of(row, pair, measure)
        return cls, "; ".join(filter(None, (self.outside.changed_since(row), note)))

    def _stepped_otherwise(self, row: int) -> str:
        """Say which run's optimizer stepped once more, or left out a parameter; else ""."""
        if run := stepped_again(self.frontier, row):
            return f"{run}'s optimizer stepped again, without a backward pass in between"
        if more := self.changes.stepped_more(row):
            return more
        return untrained_since(self.frontier, row)
