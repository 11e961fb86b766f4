"""What one run alone computes a record from, and which of its operations one run alone has.

B computes it from memory, which A does not have
B has a second Mul
Bmm takes the same in another order: q, k | k, q
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anchorlib.diagnosis.judgement.changes.absences import absences
from anchorlib.diagnosis.judgement.changes.calls import Calls, recorded
from anchorlib.diagnosis.judgement.changes.gradients_missing import without_gradient
from anchorlib.diagnosis.judgement.changes.operations import (
    MOVING,
    Operation,
    arguments,
    nth,
    rearranged,
    several,
    taken_otherwise,
)
from anchorlib.diagnosis.judgement.changes.sharing import shared_otherwise
from anchorlib.diagnosis.judgement.changes.unreached import unreached
from anchorlib.diagnosis.pairing import compiled
from anchorlib.names import escape
from anchorlib.record import Edges

__all__ = ["Compositions"]

SHOWN = 3  # the most changes of one kind that are named


@dataclass(frozen=True, slots=True)
class Compositions:
    """Compares from what, and by which operations, the two runs computed a record."""

    calls: Calls

    def counted(self, row: int, a: Sequence[Operation], b: Sequence[Operation]) -> list[str]:
        """Return clauses on parents, gradients or operations that one run alone has; else [].

        a, b: the operations that made the row in A, and in B. Only the first of these three in
        which the runs differ is named.
        """
        if alone := self.calls.made_of_alone(row):
            return [f"B computes it from {alone}, which A does not have"]
        if lone := absences(self.calls.frontier, row, self.calls.names):
            return lone
        if ungraded := self._ungraded(row):
            return ungraded
        if others := self.made_of_others(row):
            return others
        if not (a or self.calls.is_handed_on(row, 0)) or not (b or self.calls.is_handed_on(row, 1)):
            return []
        first, second = (Counter(one.name for one in ops) for ops in (a, b))
        if self.calls.is_cut_elsewhere(row):
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

    def arranged(self, row: int) -> list[str]:
        """Return clauses on equal operations whose operands, or parts of these, have another order.

        row: a row of A. [] where all operands are in equal order, at most SHOWN clauses.
        """
        clauses = []
        for calls in self.calls.of(row):
            a, b = (
                self.calls.edges(run, one) for run, one in enumerate(self.calls.followed(calls))
            )
            if a is None or b is None or compiled(a.ops):
                continue
            if a.ops != b.ops:
                clauses += rearranged(a, b)
            elif moving := _moving(a, b):
                clauses += moving
            elif swapped := taken_otherwise(a, b, self.calls.names):
                clauses.append(swapped)
        return list(dict.fromkeys(clauses))[:SHOWN]

    def made_of_others(self, row: int) -> list[str]:
        """Return a clause on records from which one run alone computes a value; else [].

        Both runs must have these records. row: a row of A.
        """
        if self.calls.kind(row) != "value" or self.calls.is_cut_elsewhere(row):
            return []
        for calls in self.calls.of(row):
            a, b = (
                self.calls.edges(run, one) for run, one in enumerate(self.calls.followed(calls))
            )
            if a is None or b is None or a.missing or b.missing:
                continue
            own = {
                self.calls.names.get(parent.name, parent.name): parent.name
                for parent in recorded(a)
            }
            other = {parent.name for parent in recorded(b)}
            more = ", ".join(sorted(escape(name) for name in other - own.keys()))
            less = ", ".join(sorted(escape(own[name]) for name in own.keys() - other))
            if more and less:
                return [f"B computes it from {more}, A from {less}"]
            if more or less:
                return [f"{'B' if more else 'A'} alone computes it from {more or less}"]
        return []

    def _ungraded(self, row: int) -> list[str]:
        """Return clauses on gradients that only one run has; [] without any.

        For a gradient, a clause may also say that one run alone computes a certain value from the
        gradient's parameter, as where it ties weights. row: a row of A.
        """
        missing = without_gradient(self.calls.frontier, row, self.calls.names)
        if self.calls.kind(row) in ("grad", "pass_grad") and (
            other := unreached(self.calls.frontier, row)
            or shared_otherwise(self.calls.frontier, row)
        ):
            return [*other, *filter(None, [missing])]
        return [f"{missing}: requires_grad?"] if missing else []

    def _passed_over(self, row: int, other: Counter[str]) -> list[str]:
        """Return a clause on a parent that A alone records and that B does not compute; else [].

        B may compute such a parent and only lack its anchor: then B's operations between the row
        and its parents include those that made the parent. B does not compute the parent if it
        lacks the last operation that made the parent, or if it lacks any operation of the parent or
        the row and has none that A lacks.
        other: the operations between B's record and its parents. row: a row of A; [] if it is no
        value.
        """
        for one, _ in self.calls.of(row) if self.calls.kind(row) == "value" else ():
            edges = self.calls.edges(0, one)
            for parent in recorded(edges) if edges is not None and other else ():
                if self.calls.names.get(parent.name, parent.name) in self.calls.known[1]:
                    continue
                made = self.calls.edges(0, one._replace(name=parent.name, call=parent.call or 0))
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

    @property
    def _edges_of_a(self) -> Iterable[Sequence[Edges]]:
        return self.calls.frontier.alignment.a.edges.values()


def _moving(a: Edges, b: Edges) -> list[str]:
    """Return clauses on arguments that differ in operations that only move bits; [] for none.

    a, b: the stored edges of one record in A and in B.
    """
    sides = [
        [
            Operation(op, text)
            for op, text in zip(edges.ops, edges.arguments or ("",) * len(edges.ops), strict=True)
            if MOVING.match(op)
        ]
        for edges in (a, b)
    ]
    return arguments(*sides)
