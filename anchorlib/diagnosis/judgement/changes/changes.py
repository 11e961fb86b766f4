"""What B does otherwise at an origin, as far as the records and headers of both runs show it.

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

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from anchorlib.diagnosis.causes import (
    Frontier,
    HistoryParting,
    Lineage,
    Role,
    between,
    drawn_otherwise,
    made_otherwise,
    module_key,
    other_values,
    partings_of,
)
from anchorlib.diagnosis.judgement.changes.absences import (
    absences,
    called_otherwise,
    models_called_otherwise,
)
from anchorlib.diagnosis.judgement.changes.autocasting import autocast_otherwise, without_casts
from anchorlib.diagnosis.judgement.changes.bootstrapped import other_share
from anchorlib.diagnosis.judgement.changes.clipping import clipped_otherwise
from anchorlib.diagnosis.judgement.changes.detaching import detached
from anchorlib.diagnosis.judgement.changes.given import given_elsewhere
from anchorlib.diagnosis.judgement.changes.gradients_missing import without_gradient
from anchorlib.diagnosis.judgement.changes.indices import (
    exchanged,
    other_targets,
    said_by_names,
    without_data,
    without_targets,
)
from anchorlib.diagnosis.judgement.changes.leftover import LACKS, leftover
from anchorlib.diagnosis.judgement.changes.moves import moved
from anchorlib.diagnosis.judgement.changes.operations import (
    MOVING,
    Operation,
    about,
    arguments,
    multiplies_unrecorded,
    nth,
    other_number,
    rearranged,
    several,
    taken_otherwise,
    unkept,
)
from anchorlib.diagnosis.judgement.changes.optimizer_state import held_otherwise
from anchorlib.diagnosis.judgement.changes.optimizer_steps import (
    has_lone_updates,
    stepped_more,
    written_outside,
)
from anchorlib.diagnosis.judgement.changes.reduction import reduced_otherwise
from anchorlib.diagnosis.judgement.changes.relations import relation
from anchorlib.diagnosis.judgement.changes.rows_read import rows_read
from anchorlib.diagnosis.judgement.changes.second_steps import stepped_again
from anchorlib.diagnosis.judgement.changes.sharing import shared_otherwise
from anchorlib.diagnosis.judgement.changes.squares import squared_targets
from anchorlib.diagnosis.judgement.changes.step_passes import other_passes, passes_apart
from anchorlib.diagnosis.judgement.changes.targets import targets
from anchorlib.diagnosis.judgement.changes.unreached import unreached
from anchorlib.diagnosis.judgement.clauses import ValueClause
from anchorlib.diagnosis.pairing import Table, compiled, opaque, with_operations
from anchorlib.diagnosis.sizes import Measure
from anchorlib.names import escape
from anchorlib.record import Edges, Parent

__all__ = ["Changes"]

PARALLEL = 1e-10  # largest cosine distance of a tensor and its multiple, rounded to float32
CLEAR = 1e-3  # relative difference from which two factors differ
FEW = 5  # elements: a smaller tensor is a multiple of another by chance
MOST_PARTS = 4096  # parts that a step may be split into
WHOLE = 1e-5  # distance from a whole number that rounding leaves
FAR = 64.0  # eps of error from which values are read, to look for relations between them
SHOWN = 3  # the most changes of one kind that are named


class Call(NamedTuple):
    """The coordinates of a forward call, by which its stored edges are found in one run.

    Edges say from which records and by which operations the call's result was computed.
    """

    rank: int
    name: str
    step: int
    pass_index: int
    call: int
    phase: str
    attempt: int


@dataclass(slots=True)
class Changes:
    """Finds what B does otherwise than A at a row of A's table, in words.

    unread: for how many more records values may be read, which takes time.
    """

    frontier: Frontier
    unread: int = 10
    _lineages: dict[tuple[int, int], Lineage] = field(default_factory=dict)
    _names: dict[str, str] = field(init=False)
    _known: tuple[set[str], set[str]] = field(init=False)
    _has_lone_updates: bool | None = None
    _partings: dict[int, list[HistoryParting]] = field(default_factory=dict)  # by rank

    def __post_init__(self) -> None:
        alignment = self.frontier.alignment
        self._names = {renaming.a: renaming.b for renaming in alignment.renamed}
        a, b = _names_of(alignment.a), _names_of(alignment.b)
        self._known = ({self._names.get(name, name) for name in a}, b)

    def of(self, row: int, measure: Measure) -> tuple[str, ...]:
        """Return what B does otherwise at a row, a clause for each change.

        () if no change is known.
        """
        a, b = self.operations(row, elsewhere=True)
        cast = autocast_otherwise(self.frontier, row, a, b)
        if cast:
            a, b = without_casts(a), without_casts(b)
        module = self._module(row)
        # A module and its operation state the same argument: "GELU approximate", "GeluBackward0 …".
        stated = arguments(without_targets(a), without_targets(b))
        told_otherwise = [clause for clause in stated if about(clause) not in map(about, module)]
        clauses = [*cast, *module, *self._said_by_names(row, a, b, told_otherwise)]
        clauses += filter(None, [written_outside(self.frontier, row)])
        clauses += called_otherwise(self.frontier, row, self._names)
        clauses += self._counted(row, a, b) or self._arranged(row)
        clauses += [*self._settings(row), *held_otherwise(self.frontier, row)]
        values = self._in_values(row, measure)
        if not self._says_code(clauses):
            clauses += models_called_otherwise(self.frontier, row, self._names)
        if not any("target" in one for one in values):
            values += other_targets(a, b)
        if not self._says_code(clauses) and any("target differs" in one for one in values):
            values += other_share(self.frontier, row, a)
        return (*clauses, *values, *self._multiple(row, measure))

    def _multiple(self, row: int, measure: Measure) -> list[str]:
        """Says that B's record is a multiple of A's; else []."""
        if factor := _factor(measure):
            return [ValueClause(f"B is {factor:.6g} times A{self._scaled(row, factor)}")]
        if self._kind(row) == "grad" and (factor := _whole_factor(measure)):
            values_of = f"{measure.value_a:.6g} | {measure.value_b:.6g}"
            return [ValueClause(f"B is {factor:.6g} times A: {values_of}")]
        return []

    @staticmethod
    def _says_code(clauses: Sequence[str]) -> bool:
        """Whether any clause is about code, and not only about the data given to operations."""
        return any(" from " not in clause and " of mean " not in clause for clause in clauses)

    def _said_by_names(
        self, row: int, a: Sequence[Operation], b: Sequence[Operation], clauses: Sequence[str]
    ) -> list[str]:
        """Clauses about arguments, in which indices are replaced by the records that hold them."""
        alignment = self.frontier.alignment
        row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
        sides = ((alignment.a, row, a), (alignment.b, row_b, b))
        return [said_by_names(clause, sides) for clause in clauses]

    def given(self, row: int, measure: Measure) -> tuple[str, ...]:
        """Return what is known of a difference that came in from outside, such as data, as clauses.

        That is which operands differ, and how B's values follow from A's.
        """
        clauses = arguments(*self.operations(row))
        clauses = [clause for clause in clauses if " of mean " in clause or " from " in clause]
        if self.frontier.role[row] == Role.OPTIMIZER:
            clauses += [*self._settings(row), *held_otherwise(self.frontier, row)]
        if factor := _factor(measure):
            return (*clauses, f"B is {factor:.6g} times A")
        elsewhere = given_elsewhere(self.frontier, row)
        clauses += filter(None, [elsewhere, other_passes(self.frontier, row)])
        if self._far(measure):
            clauses += relation(self.frontier, row)
        return tuple(clauses)

    def stepped_more(self, row: int) -> str:
        """Says that a parameter was updated more often in one run before this row; else ""."""
        if self._has_lone_updates is None:
            self._has_lone_updates = has_lone_updates(self.frontier.alignment)
        return stepped_more(self.frontier, row, self._names) if self._has_lone_updates else ""

    def unkept(self, row: int) -> tuple[str, ...]:
        """Names numbers of a row's operations that autograd does not keep, if all else is equal.

        That all else is equal is known only in steps that both runs state. Nothing is said where
        a run drew other random numbers and operations take what no record holds, as dropout does.
        """
        clauses = []
        for call_a, call_b in self._calls(row):
            a, b = self._edges(0, call_a), self._edges(1, call_b)
            if a is None or b is None or compiled(a.ops):
                continue
            stated = a.step == call_a.step and b.step == call_b.step
            if stated and not (self._drawn_otherwise(call_a.step) and multiplies_unrecorded(a)):
                clauses += unkept(a, b)
        return tuple(dict.fromkeys(clauses))[:1]

    def _drawn_otherwise(self, step: int) -> bool:
        """Whether B drew other random numbers before or in a step, which the next step shows."""
        drawn = drawn_otherwise(self.frontier.alignment)
        return drawn is not None and drawn <= step + 1

    def _kind(self, row: int) -> str:
        a = self.frontier.alignment.a
        kind: str = a.tensors[a.tensor[row]].kind
        return kind

    def operations(
        self, row: int, *, elsewhere: bool = False
    ) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
        """The operations of A and of B between a row and its parents, without moves of bits.

        elsewhere: whether to take them from another call where this call has no operations.
        """
        both: tuple[list[Operation], list[Operation]] = ([], [])
        for calls in self._calls(row):
            for run, call in enumerate(self._followed(calls) if elsewhere else calls):
                both[run].extend(self._between(run, call, row))
        a, b = (tuple(one for one in ops if not MOVING.match(one.name)) for ops in both)
        return a, b

    def made_of_alone(self, row: int) -> str:
        """Return the names of parents of B's record that A did not record, as text.

        "" without any.
        """
        alignment = self.frontier.alignment
        if alignment.a.tensors[alignment.a.tensor[row]].kind != "value" or not len(
            alignment.only_b
        ):
            return ""
        b = alignment.b
        paired = {
            b.tensors[number].name for number in np.unique(b.tensor[alignment.b_row]).tolist()
        }
        only = {b.tensors[number].name for number in np.unique(b.tensor[alignment.only_b]).tolist()}
        statements = [self._edges(1, two) for _, two in self._calls(row)]
        parents = dict.fromkeys(
            parent.name for edges in statements if edges for parent in edges.parents
        )
        return ", ".join(escape(name) for name in parents if name in only - paired)

    # -- where statements are found

    def _calls(self, row: int) -> Iterator[tuple[Call, Call]]:
        """Yields the forward calls whose operations made this row, as (call in A, call in B).

        A value has one; a gradient has one for each use of its tensor from which it comes back.
        """
        alignment = self.frontier.alignment
        at = int(np.searchsorted(alignment.a_row, row))
        call_a = _call(alignment.a, row)
        call_b = _call(alignment.b, int(alignment.b_row[at]))
        if alignment.a.tensors[alignment.a.tensor[row]].kind == "value":
            yield call_a, call_b
            return
        for link in self.frontier.ancestry(row).parents:
            if link.saved or link.kind != "grad" or link.steps_back or link.call is None:
                continue
            later = link.pass_index - call_a.pass_index
            yield (
                call_a._replace(name=link.name, pass_index=link.pass_index, call=link.call),
                call_b._replace(
                    name=self._names.get(link.name, link.name),
                    pass_index=call_b.pass_index + later,
                    call=link.call,
                ),
            )

    def _followed(self, calls: tuple[Call, Call]) -> tuple[Call, Call]:
        """Return the calls, or calls of the same name that state operations in both runs.

        Under `no_grad`, the edges of a module's output name the module and no operations. The
        operations are stated where the module is called with gradients.
        calls: the call in A and in B.
        """
        statements = [self._edges(run, call) for run, call in enumerate(calls)]
        if not any(edges is not None and opaque(edges.ops) for edges in statements):
            return calls
        stated: list[Call] = []
        tables = (self.frontier.alignment.a, self.frontier.alignment.b)
        for table, call in zip(tables, calls, strict=True):
            edges = with_operations(table, call.rank, call.name)
            if edges is None:
                return calls
            stated.append(
                call._replace(
                    step=edges.step,
                    pass_index=edges.pass_index,
                    call=edges.call,
                    phase=edges.phase,
                    attempt=edges.attempt,
                )
            )
        return stated[0], stated[1]

    def _between(self, run: int, call: Call, row: int) -> list[Operation]:
        """The operations of a call that lie between the row's tensor and the call's result."""
        edges = self._edges(run, call)
        if edges is None or compiled(edges.ops) or opaque(edges.ops):
            return []
        a = self.frontier.alignment.a
        own = a.tensors[a.tensor[row]]
        name = self._names.get(own.name, own.name) if run else own.name
        places: Sequence[int] = range(len(edges.ops))
        numbers = [n for n, parent in enumerate(edges.parents, 1) if parent.name == name]
        if own.kind != "value" and numbers:
            places = sorted({place for number in numbers for place in between(edges, number)})
        texts = edges.arguments or ("",) * len(edges.ops)
        return [Operation(edges.ops[place], texts[place]) for place in places]

    def _edges(self, run: int, call: Call) -> Edges | None:
        """Return the stored edges of a call in A (0) or B (1); None where the run has none."""
        lineage = self._lineages.get((run, call.rank))
        if lineage is None:
            table = (self.frontier.alignment.a, self.frontier.alignment.b)[run]
            lineage = Lineage(table.edges.get(call.rank, ()))
            self._lineages[run, call.rank] = lineage
        return lineage.edges(
            call.name,
            step=call.step,
            pass_index=call.pass_index,
            call=call.call,
            phase=call.phase,
            attempt=call.attempt,
        )

    # -- what is said

    def other_settings(self, row: int) -> bool:
        """Whether the two modules that made a row have different values for equal arguments.

        Such modules compute different formulas: eps, approximate, p, negative_slope. Two modules of
        different classes, or with different arguments, may still compute one formula.
        """
        a = self.frontier.alignment.a
        if a.tensors[a.tensor[row]].kind not in ("value", "pass_grad"):
            return False
        return other_values(*self._texts(row))

    def other_number(self, row: int) -> bool:
        """Whether one operation that made a value has another number, and all else is equal.

        False where parts were merged for the comparison: each part may have been divided by the
        number of parts, and that is no other formula.
        """
        alignment = self.frontier.alignment
        value = alignment.a.tensors[alignment.a.tensor[row]].kind == "value"
        return value and not alignment.merged and other_number(*self.operations(row))

    def other_factor(self, row: int) -> bool:
        """Whether one operation that made a value has another number, perhaps in a tensor.

        The program may have computed that tensor from values that differ already. So the answer is
        meaningful only where everything that the value is computed from is equal.
        """
        alignment = self.frontier.alignment
        value = alignment.a.tensors[alignment.a.tensor[row]].kind == "value"
        return value and not alignment.merged and other_number(*self.operations(row), computed=True)

    def other_code(self, row: int) -> bool:
        """Whether both runs state what made a row, and the code that made it differs.

        The code differs where a value is computed from other records, by other operations, by equal
        operations in another order or with other arguments, where one run reads by another of the
        indices that both runs have, and where one run cuts the graph behind the value. Different
        data or parameters change none of these.
        """
        if detached(self.frontier, row) or self.other_settings(row):
            return True
        if self._kind(row) != "value" or self._cut_elsewhere(row):
            return False
        a, b = self.operations(row, elsewhere=True)
        if a and b and (Counter(op.name for op in a) != Counter(op.name for op in b)):
            return True
        if exchanged(a, b) or arguments(without_data(a), without_data(b)):
            return True
        statements = (
            tuple(self._edges(run, call) for run, call in enumerate(self._followed(calls)))
            for calls in self._calls(row)
        )
        return bool(self._made_of_others(row)) or any(
            bool(rearranged(x, y) if x.ops != y.ops else taken_otherwise(x, y, self._names))
            for x, y in statements
            if x is not None and y is not None and not compiled(x.ops)
        )

    def _module(self, row: int) -> list[str]:
        """The arguments of this output's or parameter's module, where the runs differ in them."""
        made = made_otherwise(*self._texts(row))
        return [] if made is None else [" | ".join(map(escape, made))]

    def _texts(self, row: int) -> tuple[object, object]:
        """The texts with which the row's module describes itself in A and in B; None if unknown."""
        a, b = self.frontier.alignment.a, self.frontier.alignment.b
        tensor = a.tensors[a.tensor[row]]
        header_a, header_b = a.header.get(tensor.rank, {}), b.header.get(tensor.rank, {})
        for name in (tensor.name, tensor.name.rpartition(".")[0]):
            key_a, key_b = module_key(name), module_key(self._names.get(name, name))
            if key_a in header_a:
                return header_a[key_a], header_b.get(key_b)
        return None, None

    def _counted(self, row: int, a: Sequence[Operation], b: Sequence[Operation]) -> list[str]:
        """Parents, gradients or operations that one run alone has, or has more of, as clauses."""
        if alone := self.made_of_alone(row):
            return [f"B computes it from {alone}, which A does not have"]
        if lone := absences(self.frontier, row, self._names):
            return lone
        if ungraded := self._ungraded(row):
            return ungraded
        if others := self._made_of_others(row):
            return others
        if not (a or self._is_handed_on(row, 0)) or not (b or self._is_handed_on(row, 1)):
            return []
        first, second = (Counter(one.name for one in ops) for ops in (a, b))
        if self._cut_elsewhere(row):
            passed = self._passed_over(row, second)
            known = {op for some in self._edges_of_a for edges in some for op in edges.ops}
            new = Counter([name for name in second if name not in known])
            return [*passed, *([f"B computes it by {several(new)}"] if new else [])]
        more, less = second - first, first - second
        if more and less and not (set(more) & set(first) or set(less) & set(second)):
            return [f"B has {several(more)} in place of {several(less)}"]
        clauses = [f"B has {nth(name, second[name], count)}" for name, count in more.items()]
        clauses += [f"A has {nth(name, first[name], count)}" for name, count in less.items()]
        return clauses[:SHOWN]

    def _ungraded(self, row: int) -> list[str]:
        """Return clauses on gradients that only one run has; for a gradient, also on a tied weight.

        A tied weight is a parameter from which one run alone computes a certain value. [] without
        any.
        """
        missing = without_gradient(self.frontier, row, self._names)
        if self._kind(row) in ("grad", "pass_grad") and (
            other := unreached(self.frontier, row) or shared_otherwise(self.frontier, row)
        ):
            return [*other, *filter(None, [missing])]
        return [f"{missing}: requires_grad?"] if missing else []

    def _is_handed_on(self, row: int, run: int) -> bool:
        """Return whether a run's edges say that a value is another record's tensor, renamed."""
        if self._kind(row) != "value":
            return False
        statements = (self._edges(run, self._followed(calls)[run]) for calls in self._calls(row))
        return any(
            edges and edges.parents and not (edges.ops or edges.missing) for edges in statements
        )

    def _made_of_others(self, row: int) -> list[str]:
        """Return a clause if B computes a value from other records than A, which both have.

        Else [].
        """
        if self._kind(row) != "value" or self._cut_elsewhere(row):
            return []
        for calls in self._calls(row):
            a, b = (self._edges(run, call) for run, call in enumerate(calls))
            if a is None or b is None or a.missing or b.missing:
                continue
            own = {
                self._names.get(parent.name, parent.name): parent.name for parent in _recorded(a)
            }
            other = {parent.name for parent in _recorded(b)}
            more = ", ".join(sorted(escape(name) for name in other - own.keys()))
            less = ", ".join(sorted(escape(own[name]) for name in own.keys() - other))
            if more and less:
                return [f"B computes it from {more}, A from {less}"]
            if more or less:
                return [f"{'B' if more else 'A'} alone computes it from {more or less}"]
        return []

    def _passed_over(self, row: int, other: Counter[str]) -> list[str]:
        """Names a record that A alone has and whose operations B does not run.

        Either B does not run the first of its operations, or B lacks some of them and has no
        operation that A lacks. Otherwise B may compute the record and only lack its anchor.
        other: the operations between B's record and its parents.
        """
        for one, _ in self._calls(row) if self._kind(row) == "value" else ():
            edges = self._edges(0, one)
            for parent in _recorded(edges) if edges is not None and other else ():
                if self._names.get(parent.name, parent.name) in self._known[1]:
                    continue
                made = self._edges(0, one._replace(name=parent.name, call=parent.call or 0))
                ops = [] if made is None else [op for op in made.ops if not MOVING.match(op)]
                if edges is None or not ops or compiled(ops):
                    continue
                own = Counter(op for op in edges.ops if not MOVING.match(op))
                lacking = own + Counter(ops) - other
                if ops[0] in other and (not lacking or other - own - Counter(ops)):
                    continue
                operations = several(Counter(ops[:1]) if ops[0] not in other else lacking)
                return [f"A computes it from {escape(parent.name)} ({operations}), B does not"]
        return []

    def _settings(self, row: int) -> list[str]:
        """The optimizer settings that differ up to the step of an update, a clause for each.

        Where no parameter is recorded, an update first shows in what is computed from it. An
        optimizer that calls a closure (LBFGS) shows its updates in the parameters of later passes.
        """
        alignment = self.frontier.alignment
        tensor = alignment.a.tensors[alignment.a.tensor[row]]
        updated = tensor.kind in ("updated", "delta") or tensor.kind.startswith("opt.")
        parameter = (
            self.frontier.role[row] == Role.PARAMETER or self.frontier.parameter_lacking[row]
        )
        shown = bool(parameter and (alignment.a.step[row] or alignment.a.pass_index[row]))
        if not updated and not shown:
            return []
        header_a, header_b = (t.header.get(tensor.rank, {}) for t in (alignment.a, alignment.b))
        step = int(alignment.a.step[row])
        differing = {
            name: HistoryParting(name, 0, header_a[name], header_b[name])
            for name in header_a
            if name.startswith("optimizer") and header_a[name] != header_b.get(name, header_a[name])
        }
        differing |= _switched(header_a, header_b)
        if tensor.rank not in self._partings:
            self._partings[tensor.rank] = partings_of(alignment, tensor.rank)
        schedules = self._partings[tensor.rank]
        differing |= {parting.name: parting for parting in schedules if parting.step <= step}
        return [_setting(parting, header_a) for parting in differing.values()][:SHOWN]

    def _in_values(self, row: int, measure: Measure) -> list[str]:
        """Relations between the values of a record in A and B, a clause each.

        Only the first few records are read, since reading values takes time.
        """
        if not self._far(measure):
            return []
        clauses = [*moved(self.frontier, row), *targets(self.frontier, row)]
        read_otherwise = rows_read(self.frontier, row) if self._kind(row) == "value" else []
        clauses += [*read_otherwise, *squared_targets(self.frontier, row)]
        alignment = self.frontier.alignment
        if self._kind(row) == "grad" and not clauses and not stepped_again(self.frontier, row):
            pair = int(np.searchsorted(alignment.a_row, row))
            of_pass = leftover(alignment, pair, measure.eps)
            # Where the runs have different passes, nothing needs to be left over for a difference.
            if of_pass and (LACKS in of_pass or not passes_apart(self.frontier, row)):
                clauses.append(of_pass)
            clauses = clauses or reduced_otherwise(self.frontier, row)
            clauses = clauses or clipped_otherwise(self.frontier, row)
        if (read_otherwise or not clauses) and not _factor(measure):
            clauses += relation(self.frontier, row)
        return clauses

    def _far(self, measure: Measure) -> bool:
        """Return whether the values of a record may be read: only of the first large errors.

        Each call that returns True counts down `unread`.
        """
        whole = bool(np.isnan(measure.error_eps)) and measure.share_differing > 0  # integers
        far = measure.error_eps > FAR or measure.measured in ("summary", "shape") or whole
        if not far or not self.unread:
            return False
        self.unread -= 1
        return True

    def _scaled(self, row: int, factor: float) -> str:
        """Says that a factor is the loss scale that other records of the step state, or ""."""
        a = self.frontier.alignment.a
        which = (a.step == a.step[row]) & (a.scale != a.scale[row])
        scales = np.unique(a.scale[which])
        stated = scales[(scales > 0) & (scales != 1)]
        if not len(stated):
            return ""
        near = np.abs(np.stack([stated * factor, stated / factor]) - 1) < CLEAR
        return f": 1 to the loss scale of {stated[near.any(axis=0)][0]:.6g}" if near.any() else ""

    def _arranged(self, row: int) -> list[str]:
        """Says that equal operations take their operands, or parts of these, in another order."""
        clauses = []
        for call_a, call_b in self._calls(row):
            a, b = self._edges(0, call_a), self._edges(1, call_b)
            if a is None or b is None or compiled(a.ops):
                continue
            if a.ops != b.ops:
                clauses += rearranged(a, b)
            elif moving := _moving(a, b):
                clauses += moving
            elif swapped := taken_otherwise(a, b, self._names):
                clauses.append(swapped)
        return list(dict.fromkeys(clauses))[:SHOWN]

    @property
    def _edges_of_a(self) -> Iterable[Sequence[Edges]]:
        return self.frontier.alignment.a.edges.values()

    def _cut_elsewhere(self, row: int) -> bool:
        """Return whether a row has a parent in one run that the other run never names.

        The operations between the same two records then belong to two values in one run, and to one
        value in the other run.
        """
        for calls in self._calls(row):
            parents = [
                {parent.name for parent in _recorded(edges)} if edges else set()
                for edges in (self._edges(run, call) for run, call in enumerate(calls))
            ]
            parents[0] = {self._names.get(name, name) for name in parents[0]}
            if parents[0] - self._known[1] or parents[1] - self._known[0]:
                return True
        return False


def _recorded(edges: Edges) -> list[Parent]:
    """Return those parents in stored edges that are not parameters."""
    return [parent for parent in edges.parents if parent.call is not None]


def _moving(a: Edges, b: Edges) -> list[str]:
    """In which arguments operations that only move bits differ, a clause for each."""
    sides = [
        [
            Operation(op, text)
            for op, text in zip(edges.ops, edges.arguments or ("",) * len(edges.ops), strict=True)
            if MOVING.match(op)
        ]
        for edges in (a, b)
    ]
    return arguments(*sides)


def _names_of(table: Table) -> set[str]:
    """Return every name that a run uses, for its recorded tensors and in its stored edges."""
    statements = (edges for some in table.edges.values() for edges in some)
    return {tensor.name for tensor in table.tensors}.union(
        *({edges.name, *(parent.name for parent in edges.parents)} for edges in statements)
    )


def _call(table: Table, row: int) -> Call:
    tensor = table.tensors[table.tensor[row]]
    return Call(
        rank=tensor.rank,
        name=tensor.name,
        step=int(table.step[row]),
        pass_index=int(table.pass_index[row]),
        call=int(table.call[row]),
        phase=table.phases[table.phase[row]],
        attempt=int(table.attempt[row]),
    )


def _switched(
    header_a: Mapping[str, Any], header_b: Mapping[str, Any]
) -> dict[str, HistoryParting]:
    """Return the switches of optimizers that one run lists as on and the other does not list.

    The dict is by the setting's name. A switch that a header does not list is off. A setting that
    is a word, as `line_search_fn`, and that one run alone lists counts as a switch too.
    """
    return {
        name: HistoryParting(name, 0, *_sides(header_a.get(name), header_b.get(name)))
        for name in header_a.keys() ^ header_b.keys()
        if name.startswith("optimizer")
        and name.partition(".")[0] in header_a.keys() & header_b.keys()
        and isinstance(one := header_a.get(name) or header_b.get(name), bool | str)
        and one
    }


def _sides(a: object, b: object) -> tuple[object, object]:
    """Return the values of a switch in both runs, where one header may not list it.

    An unlisted switch is False. Where the setting is a word, an unlisted one is None.
    """
    return (a, b) if isinstance(a, str) or isinstance(b, str) else (a is True, b is True)


def _setting(parting: HistoryParting, header: Mapping[str, Any]) -> str:
    """Return the clause on a setting that differs, as "AdamW lr 0.001 | 0.0005 from step 10"."""
    optimizer, _, what = parting.name.partition(".")
    name = f"{header.get(optimizer, optimizer)} {what}" if what else "optimizer"
    since = f" from step {parting.step}" if parting.step else ""
    return escape(f"{name} {parting.a} | {parting.b}{since}")


def _factor(measure: Measure) -> float:
    """The factor by which B is a multiple of A; 0.0 where B is no multiple.

    A factor helps people, who can look for it in their program. Tensors of a few elements are left
    out: any number is a multiple of any other number, and so are numbers whose sum is fixed, as the
    gradient of two logits.
    """
    if measure.numel < FEW or not (measure.cosine_distance <= PARALLEL and measure.value_a):
        return 0.0
    factor = measure.value_b / measure.value_a
    apart = measure.error_eps * measure.eps
    return factor if apart > CLEAR and abs(abs(factor - 1) / apart - 1) < CLEAR else 0.0


def _whole_factor(measure: Measure) -> float:
    """B divided by A for a gradient of one number, where one is a whole multiple of the other.

    0.0 elsewhere. Backward begins with 1 over the number by which the loss is divided: the number
    of micro-batches, or of ranks.
    """
    if measure.numel != 1 or not (measure.value_a and measure.value_b):
        return 0.0
    factor = measure.value_b / measure.value_a
    times = max(factor, 1 / factor)
    return factor if 1.5 < times < MOST_PARTS and abs(times - round(times)) < WHOLE else 0.0
