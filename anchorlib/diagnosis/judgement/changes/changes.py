"""How B's computation of an origin differs from A's, as far as records and headers show it.

    LayerNorm eps 1e-05 | 0.01              the arguments of a module
    GeluBackward0 approximate 'none' | 'tanh'        the arguments of an operation
    B has a second Mul                      operations, without those that only move bits
    AdamW lr 0.001 | 0.0005 from step 10    the settings of an optimizer
    zero_grad? B takes A's gradient and its own of the step before
    B is 1.1 times A                        the result itself

Operations are read from the statements of the two records (`anchorlib.record.Edges`: from which
records and by which operations a value was computed). The operations of a gradient are read from
the statements of the records that were computed from its tensor. Nothing is said where a statement
is missing, or where one node of compiled code stands for many operations.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from anchorlib.diagnosis.causes import (
    Frontier,
    Role,
    drawn_otherwise,
    made_otherwise,
    module_key,
    other_values,
)
from anchorlib.diagnosis.judgement.changes.absences import (
    called_otherwise,
    models_called_otherwise,
)
from anchorlib.diagnosis.judgement.changes.autocasting import autocast_otherwise, without_casts
from anchorlib.diagnosis.judgement.changes.bootstrapped import other_share
from anchorlib.diagnosis.judgement.changes.calls import Calls
from anchorlib.diagnosis.judgement.changes.clipping import clipped_otherwise
from anchorlib.diagnosis.judgement.changes.compositions import Compositions
from anchorlib.diagnosis.judgement.changes.decays import decays_otherwise
from anchorlib.diagnosis.judgement.changes.detaching import detached
from anchorlib.diagnosis.judgement.changes.given import given_elsewhere
from anchorlib.diagnosis.judgement.changes.indices import (
    LOSS,
    exchanged,
    other_targets,
    reads_another_index,
    said_by_names,
    without_data,
    without_order,
    without_targets,
)
from anchorlib.diagnosis.judgement.changes.leftover import LACKS, leftover
from anchorlib.diagnosis.judgement.changes.moves import moved
from anchorlib.diagnosis.judgement.changes.multiples import factor_of, multiple
from anchorlib.diagnosis.judgement.changes.operations import (
    Operation,
    about,
    arguments,
    multiplies_unrecorded,
    other_number,
    rearranged,
    taken_otherwise,
    unkept,
)
from anchorlib.diagnosis.judgement.changes.optimizer_settings import OptimizerSettings
from anchorlib.diagnosis.judgement.changes.optimizer_state import held_otherwise
from anchorlib.diagnosis.judgement.changes.optimizer_steps import (
    has_lone_updates,
    stepped_more,
    written_outside,
)
from anchorlib.diagnosis.judgement.changes.precisions import precision_otherwise
from anchorlib.diagnosis.judgement.changes.reduction import reduced_otherwise
from anchorlib.diagnosis.judgement.changes.relations import relation
from anchorlib.diagnosis.judgement.changes.rows_read import rows_read
from anchorlib.diagnosis.judgement.changes.second_steps import stepped_again
from anchorlib.diagnosis.judgement.changes.squares import squared_targets
from anchorlib.diagnosis.judgement.changes.step_passes import other_passes, passes_apart
from anchorlib.diagnosis.judgement.changes.targets import targets
from anchorlib.diagnosis.pairing import compiled
from anchorlib.diagnosis.sizes import Measure
from anchorlib.names import escape

__all__ = ["Changes"]

SQUARED = re.compile(r"(Mse|SmoothL1|Huber|L1)Loss")
"""Losses whose targets are no labels and no probabilities."""
FAR = 64.0  # eps of error from which values are read, to look for relations between them


@dataclass(slots=True)
class Changes:
    """Finds how B's computation of a row of A's table differs from A's, in words.

    unread: for how many more rows stored values may be read, which takes time.
    """

    frontier: Frontier
    unread: int = 10
    calls: Calls = field(init=False)
    _compositions: Compositions = field(init=False)
    _settings: OptimizerSettings = field(init=False)
    _has_lone_updates: bool | None = None

    def __post_init__(self) -> None:
        self.calls = Calls(self.frontier)
        self._compositions = Compositions(self.calls)
        self._settings = OptimizerSettings(self.frontier)

    def of(self, row: int, measure: Measure) -> tuple[str, ...]:
        """Return clauses on how B's computation of a record differs from A's: one for each change.

        () if no difference of the computation is known. Each record whose stored values are read
        for it counts down `unread`.
        row: the record's row in A's table; it has a partner in B. measure: how far the two are
            apart.
        """
        a, b = self._operations(row)
        cast = autocast_otherwise(self.frontier, row, a, b)
        if cast:
            a, b = without_casts(a), without_casts(b)
        module = self._module(row)
        # A module and its operation state the same argument: "GELU approximate", "GeluBackward0 …".
        stated = arguments(without_targets(a), without_targets(b))
        told_otherwise = [clause for clause in stated if about(clause) not in map(about, module)]
        cast = [*cast, *precision_otherwise(self.frontier, row)]
        clauses = [*cast, *module, *self._said_by_names(row, a, b, told_otherwise)]
        clauses += filter(None, [written_outside(self.frontier, row)])
        clauses += called_otherwise(self.frontier, row, self.calls.names)
        clauses += self._compositions.counted(row, a, b) or self._compositions.arranged(row)
        settings = self._settings.at(row)
        clauses += [*settings, *held_otherwise(self.frontier, row)]
        if self.calls.kind(row) in ("updated", "delta") and not settings and self._far(measure):
            clauses += decays_otherwise(self.frontier, row)
        values = self._in_values(row, measure)
        if not self._says_code(clauses):
            clauses += models_called_otherwise(self.frontier, row, self.calls.names)
        if not any("target" in one for one in values):
            values += other_targets(a, b)
        if not self._says_code(clauses) and any("target differs" in one for one in values):
            values += other_share(self.frontier, row, a)
        return (*clauses, *values, *multiple(self.frontier, row, measure))

    def _operations(self, row: int) -> tuple[Sequence[Operation], Sequence[Operation]]:
        """Return the operations that made a row in A and in B, with the arguments that compare.

        Where passes or ranks were merged, the operations state the data of one of them. Where B has
        its samples in another order, the digests of integers differ by the order alone.
        """
        a, b = self.calls.operations(row, elsewhere=True)
        if self.frontier.alignment.merged:
            return without_data(a), without_data(b)
        if self.frontier.alignment.reordered is not None:
            return without_order(a), without_order(b)
        return a, b

    @staticmethod
    def _says_code(clauses: Sequence[str]) -> bool:
        """Return whether any clause is about code, and not only about data given to operations."""
        return any(" from " not in clause and " of mean " not in clause for clause in clauses)

    def _said_by_names(
        self, row: int, a: Sequence[Operation], b: Sequence[Operation], clauses: Sequence[str]
    ) -> list[str]:
        """Return the clauses about arguments, in which names stand for the index tensors described.

        A name is that of a record with the index's elements. row: a row of A. a, b: the operations
        that made the row in A, and in B.
        """
        alignment = self.frontier.alignment
        row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
        sides = ((alignment.a, row, a), (alignment.b, row_b, b))
        return [said_by_names(clause, sides) for clause in clauses]

    def given(self, row: int, measure: Measure) -> tuple[str, ...]:
        """Return what is known of a difference that came in from outside, such as data, as clauses.

        The clauses say which operands differ, and how B's values follow from A's.
        row: a row of A. measure: how far its record and B's are apart.
        """
        clauses = arguments(*self.calls.operations(row))
        clauses = [clause for clause in clauses if " of mean " in clause or " from " in clause]
        if self.frontier.role[row] == Role.OPTIMIZER:
            clauses += [*self._settings.at(row), *held_otherwise(self.frontier, row)]
        if factor := factor_of(measure):
            return (*clauses, f"B is {factor:.6g} times A")
        elsewhere = given_elsewhere(self.frontier, row)
        clauses += filter(None, [elsewhere, other_passes(self.frontier, row)])
        if self._far(measure):
            clauses += relation(self.frontier, row)
        return tuple(clauses)

    def stepped_more(self, row: int) -> str:
        """Return a clause if one run updated a parameter behind a value more often; else "".

        The parameter is the row's own or one that its value was computed from. Updates before the
        row count, in the row's step and the step before. row: a value of A.
        """
        if self._has_lone_updates is None:
            self._has_lone_updates = has_lone_updates(self.frontier.alignment)
        return stepped_more(self.frontier, row, self.calls.names) if self._has_lone_updates else ""

    def unkept(self, row: int) -> tuple[str, ...]:
        """Return a clause on operands that autograd does not keep, if all else is equal; else ().

        That all else is equal is known only in steps for which both runs state edges. () too where
        B drew other random numbers and an operation multiplies by a tensor without a record, as
        dropout does.
        row: a row of A.
        """
        clauses = []
        for call_a, call_b in self.calls.of(row):
            a, b = self.calls.edges(0, call_a), self.calls.edges(1, call_b)
            if a is None or b is None or compiled(a.ops):
                continue
            stated = a.step == call_a.step and b.step == call_b.step
            if stated and not (self._drawn_otherwise(call_a.step) and multiplies_unrecorded(a)):
                clauses += unkept(a, b)
        return tuple(dict.fromkeys(clauses))[:1]

    def _drawn_otherwise(self, step: int) -> bool:
        """Return whether B drew other random numbers than A in or before a step (of A's count).

        The random state at the start of the next step shows that.
        """
        drawn = drawn_otherwise(self.frontier.alignment)
        return drawn is not None and drawn <= step + 1

    def other_settings(self, row: int) -> bool:
        """Return whether a row's module has an argument with one value in A and another value in B.

        Such modules compute different formulas: eps, approximate, p, negative_slope. Two modules of
        different classes, or with arguments of different names, may still compute one formula.
        row: a value of A, or a gradient of one pass (`pass_grad`); False for others.
        """
        a = self.frontier.alignment.a
        if a.tensors[a.tensor[row]].kind not in ("value", "pass_grad"):
            return False
        return other_values(*self._texts(row))

    def other_number(self, row: int) -> bool:
        """Return whether a value's operations differ in one number, and in nothing else.

        False where passes or ranks were merged for the comparison: a program may divide by their
        number, which makes no other formula. False, too, where A's and B's value carry different
        loss scales: these are two units of one loss.
        row: a row of A; False for any kind but `value`.
        """
        return self._has_formula(row) and other_number(*self.calls.operations(row))

    def _has_formula(self, row: int) -> bool:
        """Return whether numbers in the operations that made a row can be compared with B's.

        That is so for a `value` whose records in A and B carry equal loss scales, in runs of which
        no passes or ranks were merged.
        """
        alignment = self.frontier.alignment
        a, row_b = alignment.a, int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
        value = a.tensors[a.tensor[row]].kind == "value"
        return value and not alignment.merged and bool(a.scale[row] == alignment.b.scale[row_b])

    def other_factor(self, row: int) -> bool:
        """Return whether operations are equal but for one number, which may stand in a tensor.

        The program may have computed that tensor from values that differ already. So the answer is
        meaningful only where everything that the value is computed from is equal.
        row: a row of A; False for any kind but `value`, and where passes or ranks were merged.
        """
        return self._has_formula(row) and other_number(*self.calls.operations(row), computed=True)

    def other_index(self, row: int) -> bool:
        """Return whether the operations that made a row are equal but for the contents of an index.

        An index is a tensor of integers by which an operation reads or writes elements. False where
        B has the samples of a batch in another order: its indices differ by that alone.
        """
        reordered = self.frontier.alignment.reordered is not None
        return not reordered and reads_another_index(*self.calls.operations(row))

    def other_operand(self, row: int) -> bool:
        """Return whether the operations that made a row are equal but for data and targets.

        At least one index, mask, target or other tensor among their arguments has to differ. False
        where the runs do not state their operations. row: a row of A.
        """
        a, b = self.calls.operations(row)
        plain = [without_targets(without_data(side)) for side in (a, b)]
        names = [[(op.name, op.arguments) for op in side] for side in plain]
        return bool(a) and names[0] == names[1] and list(a) != list(b)

    def other_code(self, row: int) -> bool:
        """Return whether both runs state what made a row, and the code that made it differs.

        The code of any row differs where its module has other settings. That of a gradient differs,
        too, where one run alone cuts the graph behind its tensor. That of a value differs where it
        is computed from other records, by other operations, in another order or with other
        arguments, and where two operations have exchanged their index tensors. Different data or
        parameters change none of these.
        row: a row of A. False for a value with a parent that one run alone anchors
        (`is_cut_elsewhere`), unless its module has other settings.
        """
        if detached(self.frontier, row) or self.other_settings(row):
            return True
        if self.calls.kind(row) != "value" or self.calls.is_cut_elsewhere(row):
            return False
        a, b = self.calls.operations(row, elsewhere=True)
        if a and b and (Counter(op.name for op in a) != Counter(op.name for op in b)):
            return True
        if exchanged(a, b) or arguments(without_data(a), without_data(b)):
            return True
        statements = (
            tuple(
                self.calls.edges(run, call) for run, call in enumerate(self.calls.followed(calls))
            )
            for calls in self.calls.of(row)
        )
        return bool(self._compositions.made_of_others(row)) or any(
            bool(rearranged(x, y) if x.ops != y.ops else taken_otherwise(x, y, self.calls.names))
            for x, y in statements
            if x is not None and y is not None and not compiled(x.ops)
        )

    def _module(self, row: int) -> list[str]:
        """Return the clause on how the module of a row's tensor differs in B, if it does; else [].

        The module is that of an output, or the one that holds a parameter.
        """
        made = made_otherwise(*self._texts(row))
        return [] if made is None else [" | ".join(map(escape, made))]

    def _texts(self, row: int) -> tuple[object, object]:
        """Return the descriptions of the row's module in A and in B, as texts.

        The module is the row's own, or the one that holds it. (None, None) if A's header does not
        describe the module; None for B alone if B's header does not.
        """
        a, b = self.frontier.alignment.a, self.frontier.alignment.b
        tensor = a.tensors[a.tensor[row]]
        header_a, header_b = a.header.get(tensor.rank, {}), b.header.get(tensor.rank, {})
        for name in (tensor.name, tensor.name.rpartition(".")[0]):
            key_a, key_b = module_key(name), module_key(self.calls.names.get(name, name))
            if key_a in header_a:
                return header_a[key_a], header_b.get(key_b)
        return None, None

    def _in_values(self, row: int, measure: Measure) -> list[str]:
        """Return clauses that follow from the stored values of a row, and of its parents.

        [] where the error is small, and for all rows after the first few large errors, since
        reading values takes time. row: a row of A. measure: how far its record and B's are apart.
        """
        if not self._far(measure):
            return []
        clauses = [*moved(self.frontier, row)]
        losses = [op.name for op in self.calls.operations(row)[0] if LOSS.search(op.name)]
        if not losses or not all(map(SQUARED.search, losses)):
            clauses += targets(self.frontier, row)
        read_otherwise = rows_read(self.frontier, row) if self.calls.kind(row) == "value" else []
        clauses += [*read_otherwise, *squared_targets(self.frontier, row)]
        alignment = self.frontier.alignment
        if self.calls.kind(row) == "grad" and not clauses and not stepped_again(self.frontier, row):
            pair = int(np.searchsorted(alignment.a_row, row))
            of_pass = leftover(alignment, pair, measure.eps)
            # Where the runs have different passes, nothing needs to be left over for a difference.
            if of_pass and (LACKS in of_pass or not passes_apart(self.frontier, row)):
                clauses.append(of_pass)
            clauses = clauses or reduced_otherwise(self.frontier, row)
            clauses = clauses or clipped_otherwise(self.frontier, row)
        if (read_otherwise or not clauses) and not factor_of(measure):
            clauses += relation(self.frontier, row)
        return clauses

    def _far(self, measure: Measure) -> bool:
        """Return whether a record's error is large and values may still be read to explain it.

        Each call that returns True counts down `unread`; at 0 every answer is False.
        """
        whole = bool(np.isnan(measure.error_eps)) and measure.share_differing > 0  # integers
        far = measure.error_eps > FAR or measure.measured in ("summary", "shape") or whole
        if not far or not self.unread:
            return False
        self.unread -= 1
        return True
