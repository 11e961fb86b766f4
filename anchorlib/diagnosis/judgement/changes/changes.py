"""What B does otherwise at an origin, as far as the records and headers of both runs tell.

    LayerNorm eps 1e-05 | 0.01              what the module was made with
    GeluBackward0 approximate 'none' | 'tanh'        what an operation was told
    B has a second Mul                      operations, without those that only move bits
    AdamW lr 0.001 | 0.0005 from step 10    what the optimizer was told
    zero_grad? B takes A's gradient and its own of the step before
    B is 1.1 times A                        the result itself

Operations are read from the statements (`anchorlib.record.Edges`) of the two records; those of a
gradient, from the statements of the records that were computed from its tensor. Nothing is said
where a statement is missing, or where compiled code stands for many operations.
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
    between,
    made_otherwise,
    module_key,
    other_values,
    partings,
)
from anchorlib.diagnosis.judgement.changes.absences import absences, called_otherwise
from anchorlib.diagnosis.judgement.changes.clipping import clipped_otherwise
from anchorlib.diagnosis.judgement.changes.detaching import detached
from anchorlib.diagnosis.judgement.changes.indices import (
    exchanged,
    other_targets,
    said_by_names,
    without_data,
    without_targets,
)
from anchorlib.diagnosis.judgement.changes.leftover import leftover
from anchorlib.diagnosis.judgement.changes.moves import moved
from anchorlib.diagnosis.judgement.changes.operations import (
    MOVING,
    Operation,
    about,
    arguments,
    nth,
    other_number,
    rearranged,
    several,
    taken_otherwise,
    unkept,
)
from anchorlib.diagnosis.judgement.changes.relations import ValueClause, relation
from anchorlib.diagnosis.judgement.changes.sharing import shared_otherwise
from anchorlib.diagnosis.judgement.changes.squares import squared_targets
from anchorlib.diagnosis.judgement.changes.targets import targets
from anchorlib.diagnosis.judgement.changes.unreached import unreached
from anchorlib.diagnosis.pairing import Table, compiled
from anchorlib.diagnosis.sizes import Measure
from anchorlib.names import escape
from anchorlib.record import Edges, Parent

__all__ = ["Changes"]

MODULE = (
    ".forward"  # ends the name that stands for a module whose operations autograd cannot follow
)
PARALLEL = 1e-10  # cosine distance of a tensor and a multiple of it, roundings of float32 included
CLEAR = 1e-3  # relative difference from which two factors are two
FEW = 5  # elements: of fewer, one tensor is a multiple of another by chance
MOST_PARTS = 4096  # parts that a step may be split into
WHOLE = 1e-5  # distance from a whole number that rounding leaves
FAR = 64.0  # eps of error from which values are read, to see what they tell
SHOWN = 3  # changes of one kind that are told


class Call(NamedTuple):
    """The coordinates of a forward call, by which its statement is found in one run."""

    rank: int
    name: str
    step: int
    pass_index: int
    call: int
    phase: str
    attempt: int


@dataclass(slots=True)
class Changes:
    """What B does otherwise at rows of A.

    unread: of how many more records the values may be read, which costs time.
    """

    frontier: Frontier
    unread: int = 10
    _lineages: dict[tuple[int, int], Lineage] = field(default_factory=dict)
    _names: dict[str, str] = field(init=False)
    _known: tuple[set[str], set[str]] = field(init=False)
    _partings: list[HistoryParting] = field(init=False)

    def __post_init__(self) -> None:
        alignment = self.frontier.alignment
        self._names = {one.a: one.b for one in alignment.renamed}
        self._partings = partings(alignment)
        a, b = _names_of(alignment.a), _names_of(alignment.b)
        self._known = ({self._names.get(name, name) for name in a}, b)

    def of(self, row: int, measure: Measure) -> tuple[str, ...]:
        """What B does otherwise at a row, a clause for each change; none where nothing is known."""
        a, b = self.operations(row, elsewhere=True)
        module = self._module(row)
        # A module and its operation state the same argument: "GELU approximate", "GeluBackward0 …".
        stated = arguments(without_targets(a), without_targets(b))
        told_otherwise = [one for one in stated if about(one) not in map(about, module)]
        told = [*module, *self._said_by_names(row, a, b, told_otherwise)]
        told += called_otherwise(self.frontier, row)
        told += self._counted(row, a, b) or self._arranged(row)
        told += self._settings(row)
        values = self._in_values(row, measure)
        told += (
            values if any("target" in one for one in values) else [*values, *other_targets(a, b)]
        )
        if factor := _factor(measure):
            told.append(ValueClause(f"B is {factor:.6g} times A{self._scaled(row, factor)}"))
        elif self._kind(row) == "grad" and (factor := _whole_factor(measure)):
            values_of = f"{measure.value_a:.6g} | {measure.value_b:.6g}"
            told.append(ValueClause(f"B is {factor:.6g} times A: {values_of}"))
        return tuple(told)

    def _said_by_names(
        self, row: int, a: Sequence[Operation], b: Sequence[Operation], clauses: Sequence[str]
    ) -> list[str]:
        """Clauses about arguments, in which indices are called by the records that hold them."""
        alignment = self.frontier.alignment
        row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
        sides = ((alignment.a, row, a), (alignment.b, row_b, b))
        return [said_by_names(clause, sides) for clause in clauses]

    def given(self, row: int, measure: Measure) -> tuple[str, ...]:
        """What is known of a difference that came in from outside: operands, and how B follows."""
        told = arguments(*self.operations(row))
        told = [one for one in told if " of mean " in one or " from " in one]
        if factor := _factor(measure):
            return (*told, f"B is {factor:.6g} times A")
        if self._far(measure):
            told += relation(self.frontier, row)
        return tuple(told)

    def unkept(self, row: int) -> tuple[str, ...]:
        """Says which numbers of a row's operations autograd does not keep, all else being equal."""
        told = []
        for one, two in self._calls(row):
            a, b = self._edges(0, one), self._edges(1, two)
            if a is not None and b is not None and not compiled(a.ops):
                told += unkept(a, b)
        return tuple(dict.fromkeys(told))[:1]

    def _kind(self, row: int) -> str:
        a = self.frontier.alignment.a
        kind: str = a.tensors[a.tensor[row]].kind
        return kind

    def operations(
        self, row: int, *, elsewhere: bool = False
    ) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
        """The operations of A and of B between a row and its parents, without moves of bits.

        elsewhere: whether to take them from another call where this one states none.
        """
        both: tuple[list[Operation], list[Operation]] = ([], [])
        for calls in self._calls(row):
            for run, call in enumerate(self._followed(calls) if elsewhere else calls):
                both[run].extend(self._between(run, call, row))
        a, b = (tuple(one for one in ops if not MOVING.match(one.name)) for ops in both)
        return a, b

    def made_of_alone(self, row: int) -> str:
        """The parents of B's record that have no partner in A, as text; "" where there are none."""
        alignment = self.frontier.alignment
        if alignment.a.tensors[alignment.a.tensor[row]].kind != "value" or not len(
            alignment.only_b
        ):
            return ""
        b = alignment.b
        paired = {b.tensors[one].name for one in np.unique(b.tensor[alignment.b_row]).tolist()}
        only = {b.tensors[one].name for one in np.unique(b.tensor[alignment.only_b]).tolist()}
        told = [self._edges(1, two) for _, two in self._calls(row)]
        parents = dict.fromkeys(one.name for edges in told if edges for one in edges.parents)
        return ", ".join(escape(name) for name in parents if name in only - paired)

    # -- where statements are found

    def _calls(self, row: int) -> Iterator[tuple[Call, Call]]:
        """The forward calls whose operations made this row, in A and in B."""
        alignment = self.frontier.alignment
        at = int(np.searchsorted(alignment.a_row, row))
        one = _call(alignment.a, row)
        two = _call(alignment.b, int(alignment.b_row[at]))
        if alignment.a.tensors[alignment.a.tensor[row]].kind == "value":
            yield one, two
            return
        for link in self.frontier.ancestry(row).parents:
            if link.saved or link.kind != "grad" or link.steps_back or link.call is None:
                continue
            later = link.pass_index - one.pass_index
            yield (
                one._replace(name=link.name, pass_index=link.pass_index, call=link.call),
                two._replace(
                    name=self._names.get(link.name, link.name),
                    pass_index=two.pass_index + later,
                    call=link.call,
                ),
            )

    def _followed(self, calls: tuple[Call, Call]) -> tuple[Call, Call]:
        """The calls themselves, or those of one name of which both runs state the operations.

        Under `no_grad` a module's output says that the module made it, and no more; the same module
        says more where it is called with gradients.
        """
        told = [self._edges(run, call) for run, call in enumerate(calls)]
        if not any(edges is not None and _is_opaque(edges) for edges in told):
            return calls
        found: list[Call | None] = []
        tables = (self.frontier.alignment.a, self.frontier.alignment.b)
        for table, call in zip(tables, calls, strict=True):
            places = (
                call._replace(
                    step=edges.step,
                    pass_index=edges.pass_index,
                    call=edges.call,
                    phase=edges.phase,
                    attempt=edges.attempt,
                )
                for edges in table.edges.get(call.rank, ())
                if edges.name == call.name and not edges.missing
            )
            found.append(next(places, None))
        return calls if found[0] is None or found[1] is None else (found[0], found[1])

    def _between(self, run: int, call: Call, row: int) -> list[Operation]:
        """The operations of a call that lie between the row's tensor and the call's result."""
        edges = self._edges(run, call)
        if edges is None or compiled(edges.ops) or _is_opaque(edges):
            return []
        a = self.frontier.alignment.a
        own = a.tensors[a.tensor[row]]
        name = self._names.get(own.name, own.name) if run else own.name
        places: Sequence[int] = range(len(edges.ops))
        numbers = [n for n, parent in enumerate(edges.parents, 1) if parent.name == name]
        if own.kind != "value" and numbers:
            places = sorted({place for number in numbers for place in between(edges, number)})
        told = edges.arguments or ("",) * len(edges.ops)
        return [Operation(edges.ops[place], told[place]) for place in places]

    def _edges(self, run: int, call: Call) -> Edges | None:
        """The statement of a call in A (0) or B (1); None where the run has none."""
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
        """Whether the two modules that made a row have other values of the same arguments.

        Such modules compute different formulas: eps, approximate, p, negative_slope. Two modules of
        different classes, or with different arguments, may still compute one formula.
        """
        a = self.frontier.alignment.a
        if a.tensors[a.tensor[row]].kind not in ("value", "pass_grad"):
            return False
        return other_values(*self._texts(row))

    def other_number(self, row: int) -> bool:
        """Whether one operation that made a value was told another number, all else being alike.

        False where parts were merged for the comparison: each part may have been divided by their
        number, and that is no other formula.
        """
        alignment = self.frontier.alignment
        value = alignment.a.tensors[alignment.a.tensor[row]].kind == "value"
        return value and not alignment.merged and other_number(*self.operations(row))

    def other_factor(self, row: int) -> bool:
        """Whether one operation that made a value was told another number, perhaps in a tensor.

        The program may have computed a tensor from what differs already: this holds only where all
        that the value is made of is equal.
        """
        alignment = self.frontier.alignment
        value = alignment.a.tensors[alignment.a.tensor[row]].kind == "value"
        return value and not alignment.merged and other_number(*self.operations(row), computed=True)

    def other_code(self, row: int) -> bool:
        """Whether both runs state what made a row, and code made it otherwise, whatever the data.

        A value is made of other records, by other operations or by the same in another order, or
        they are told otherwise; one run reads by another of the indices that both have, or cuts the
        graph behind it. Other data, or other parameters, change none of these.
        """
        if detached(self.frontier, row) or self.other_settings(row):
            return True
        if self._kind(row) != "value" or self._cut_elsewhere(row):
            return False
        a, b = self.operations(row)
        if a and b and (Counter(one.name for one in a) != Counter(one.name for one in b)):
            return True
        if exchanged(a, b) or arguments(without_data(a), without_data(b)):
            return True
        statements = ((self._edges(0, one), self._edges(1, two)) for one, two in self._calls(row))
        return bool(self._made_of_others(row)) or any(
            bool(rearranged(x, y) if x.ops != y.ops else taken_otherwise(x, y, self._names))
            for x, y in statements
            if x is not None and y is not None and not compiled(x.ops)
        )

    def _module(self, row: int) -> list[str]:
        """What the module of this output or parameter was made with, where the runs differ."""
        made = made_otherwise(*self._texts(row))
        return [] if made is None else [" | ".join(map(escape, made))]

    def _texts(self, row: int) -> tuple[object, object]:
        """The texts with which the row's module describes itself in A and in B; None if unknown."""
        a, b = self.frontier.alignment.a, self.frontier.alignment.b
        tensor = a.tensors[a.tensor[row]]
        told_a, told_b = a.header.get(tensor.rank, {}), b.header.get(tensor.rank, {})
        for name in (tensor.name, tensor.name.rpartition(".")[0]):
            key_a, key_b = module_key(name), module_key(self._names.get(name, name))
            if key_a in told_a:
                return told_a[key_a], told_b.get(key_b)
        return None, None

    def _counted(self, row: int, a: Sequence[Operation], b: Sequence[Operation]) -> list[str]:
        """Which operations one run alone has, or has more often."""
        if alone := self.made_of_alone(row):
            return [f"B computes it from {alone}, which A does not have"]
        if lone := absences(self.frontier, row, self._names):
            return lone
        if self._kind(row) in ("grad", "pass_grad") and (
            other := unreached(self.frontier, row) or shared_otherwise(self.frontier, row)
        ):
            return other
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
        told = [f"B has {nth(name, second[name], count)}" for name, count in more.items()]
        told += [f"A has {nth(name, first[name], count)}" for name, count in less.items()]
        return told[:SHOWN]

    def _is_handed_on(self, row: int, run: int) -> bool:
        """Whether a run states of a value that it is another record, under another name."""
        if self._kind(row) != "value":
            return False
        told = (self._edges(run, self._followed(calls)[run]) for calls in self._calls(row))
        return any(edges and edges.parents and not (edges.ops or edges.missing) for edges in told)

    def _made_of_others(self, row: int) -> list[str]:
        """Says that a value is computed from other records in B than in A, which both have."""
        if self._kind(row) != "value" or self._cut_elsewhere(row):
            return []
        for calls in self._calls(row):
            a, b = (self._edges(run, call) for run, call in enumerate(calls))
            if a is None or b is None or a.missing or b.missing:
                continue
            own = {self._names.get(one.name, one.name): one.name for one in _recorded(a)}
            other = {one.name for one in _recorded(b)}
            more = ", ".join(sorted(escape(name) for name in other - own.keys()))
            less = ", ".join(sorted(escape(own[name]) for name in own.keys() - other))
            if more and less:
                return [f"B computes it from {more}, A from {less}"]
            if more or less:
                return [f"{'B' if more else 'A'} alone computes it from {more or less}"]
        return []

    def _passed_over(self, row: int, other: Counter[str]) -> list[str]:
        """Says which record of A alone B passes over: the first of its operations runs not in B.

        Or some of them, and B has no operation that A lacks. Otherwise B may only lack the anchor.
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
                told = several(Counter(ops[:1]) if ops[0] not in other else lacking)
                return [f"A computes it from {escape(parent.name)} ({told}), B does not"]
        return []

    def _settings(self, row: int) -> list[str]:
        """The optimizer settings that differ up to the step of an update, a clause for each.

        Where no parameter is recorded, an update first shows in what is computed from it.
        """
        alignment = self.frontier.alignment
        tensor = alignment.a.tensors[alignment.a.tensor[row]]
        updated = tensor.kind in ("updated", "delta") or tensor.kind.startswith("opt.")
        shown = bool(self.frontier.parameter_lacking[row] and alignment.a.step[row])
        if not updated and not shown:
            return []
        told_a, told_b = (t.header.get(tensor.rank, {}) for t in (alignment.a, alignment.b))
        step = int(alignment.a.step[row])
        told = {
            name: HistoryParting(name, 0, told_a[name], told_b[name])
            for name in told_a
            if name.startswith("optimizer") and told_a[name] != told_b.get(name, told_a[name])
        }
        told |= _switched(told_a, told_b)
        told |= {one.name: one for one in self._partings if one.step <= step}
        return [_setting(one, told_a) for one in told.values()][:SHOWN]

    def _in_values(self, row: int, measure: Measure) -> list[str]:
        """What the values of a record tell; of the first few records alone, for reading costs."""
        if not self._far(measure):
            return []
        told = [*moved(self.frontier, row), *targets(self.frontier, row)]
        told += squared_targets(self.frontier, row)
        alignment = self.frontier.alignment
        if alignment.a.tensors[alignment.a.tensor[row]].kind == "grad" and not told:
            pair = int(np.searchsorted(alignment.a_row, row))
            told += filter(None, [leftover(alignment, pair, measure.eps)])
            told = told or clipped_otherwise(self.frontier, row)
        if not told and not _factor(measure):
            told += relation(self.frontier, row)
        return told

    def _far(self, measure: Measure) -> bool:
        """Whether the values of a record may be read: of the first that are far off alone."""
        whole = bool(np.isnan(measure.error_eps)) and measure.share_differing > 0  # integers
        far = measure.error_eps > FAR or measure.measured in ("summary", "shape") or whole
        if not far or not self.unread:
            return False
        self.unread -= 1
        return True

    def _scaled(self, row: int, factor: float) -> str:
        """Says that a factor is the loss scale which other records of the step state; else ""."""
        a = self.frontier.alignment.a
        which = (a.step == a.step[row]) & (a.scale != a.scale[row])
        scales = np.unique(a.scale[which])
        stated = scales[(scales > 0) & (scales != 1)]
        if not len(stated):
            return ""
        near = np.abs(np.stack([stated * factor, stated / factor]) - 1) < CLEAR
        return f": 1 to the loss scale of {stated[near.any(axis=0)][0]:.6g}" if near.any() else ""

    def _arranged(self, row: int) -> list[str]:
        """Says that equal operations take their operands in another order, or parts of them."""
        told = []
        for one, two in self._calls(row):
            a, b = self._edges(0, one), self._edges(1, two)
            if a is None or b is None or compiled(a.ops):
                continue
            if a.ops != b.ops:
                told += rearranged(a, b)
            elif moving := _moving(a, b):
                told += moving
            elif swapped := taken_otherwise(a, b, self._names):
                told.append(swapped)
        return list(dict.fromkeys(told))[:SHOWN]

    @property
    def _edges_of_a(self) -> Iterable[Sequence[Edges]]:
        return self.frontier.alignment.a.edges.values()

    def _cut_elsewhere(self, row: int) -> bool:
        """Whether one run recorded a tensor between the operations that has no name in the other.

        The operations then lie in two statements in one run and in one statement in the other.
        """
        for calls in self._calls(row):
            parents = [
                {one.name for one in _recorded(edges)} if edges else set()
                for edges in (self._edges(run, call) for run, call in enumerate(calls))
            ]
            parents[0] = {self._names.get(name, name) for name in parents[0]}
            if parents[0] - self._known[1] or parents[1] - self._known[0]:
                return True
        return False


def _recorded(edges: Edges) -> list[Parent]:
    """The parents of a statement that are no parameters."""
    return [one for one in edges.parents if one.call is not None]


def _moving(a: Edges, b: Edges) -> list[str]:
    """The arguments that differ of operations that only move bits, a clause for each."""
    sides = [
        [
            Operation(op, told)
            for op, told in zip(edges.ops, edges.arguments or ("",) * len(edges.ops), strict=True)
            if MOVING.match(op)
        ]
        for edges in (a, b)
    ]
    return arguments(*sides)


def _is_opaque(edges: Edges) -> bool:
    return any(op.endswith(MODULE) for op in edges.ops)


def _names_of(table: Table) -> set[str]:
    """Every name that a run uses, for its tensors and in its statements."""
    told = (edges for some in table.edges.values() for edges in some)
    return {tensor.name for tensor in table.tensors}.union(
        *({edges.name, *(parent.name for parent in edges.parents)} for edges in told)
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


def _switched(told_a: Mapping[str, Any], told_b: Mapping[str, Any]) -> dict[str, HistoryParting]:
    """The switches of an optimizer that one run has on; one that a run does not list is off."""
    return {
        name: HistoryParting(name, 0, name in told_a, name in told_b)
        for name in told_a.keys() ^ told_b.keys()
        if name.startswith("optimizer")
        and name.partition(".")[0] in told_a.keys() & told_b.keys()
        and (told_a.get(name) or told_b.get(name)) is True
    }


def _setting(one: HistoryParting, header: Mapping[str, Any]) -> str:
    """As "AdamW lr 0.001 | 0.0005 from step 10"."""
    optimizer, _, what = one.name.partition(".")
    name = f"{header.get(optimizer, optimizer)} {what}" if what else "optimizer"
    since = f" from step {one.step}" if one.step else ""
    return escape(f"{name} {one.a} | {one.b}{since}")


def _factor(measure: Measure) -> float:
    """The factor by which B is a multiple of A; 0.0 where it is none.

    One factor is easily found in a program. Tensors of a few elements are left out: any number is a
    multiple of any other, and so are numbers whose sum is fixed, as the gradient of two logits.
    """
    if measure.numel < FEW or not (measure.cosine_distance <= PARALLEL and measure.value_a):
        return 0.0
    factor = measure.value_b / measure.value_a
    apart = measure.error_eps * measure.eps
    return factor if apart > CLEAR and abs(abs(factor - 1) / apart - 1) < CLEAR else 0.0


def _whole_factor(measure: Measure) -> float:
    """B divided by A of a gradient of one number, where either is a whole multiple; else 0.0.

    Backward begins with 1 over the number that the loss is divided by: of micro-batches, or ranks.
    """
    if measure.numel != 1 or not (measure.value_a and measure.value_b):
        return 0.0
    factor = measure.value_b / measure.value_a
    times = max(factor, 1 / factor)
    return factor if 1.5 < times < MOST_PARTS and abs(times - round(times)) < WHOLE else 0.0
