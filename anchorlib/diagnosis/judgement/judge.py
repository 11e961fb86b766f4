"""The origins of a comparison, each with its class and the reasons for that class."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from anchorlib.diagnosis.causes import DIFFERS, Frontier
from anchorlib.diagnosis.judgement.changes import (
    Changes,
    stated,
    stepped_again,
    turning,
    written_by_one_run,
)
from anchorlib.diagnosis.judgement.clauses import name_a_change
from anchorlib.diagnosis.judgement.noise import Envelope
from anchorlib.diagnosis.judgement.origin_classifier import BAD, OriginClassifier
from anchorlib.diagnosis.judgement.origins import Origin, OriginGroup, groups_of_origins
from anchorlib.diagnosis.judgement.reasons import reason
from anchorlib.diagnosis.judgement.rounding import Jump, hidden_by_a_norm, jump, size_of_error
from anchorlib.diagnosis.judgement.surroundings import are_masked
from anchorlib.diagnosis.pairing import place_at
from anchorlib.diagnosis.sizes import Measures, max_ulp, whereabouts
from anchorlib.names import join

__all__ = ["Judge"]

OPTIMIZER = "the optimizer was told otherwise at this step"
MOMENTS = "the norm hides that its input differs by a factor or a shift"
WRITTEN = "it is much further off than what the optimizer's step left"
FORMULA = "both say that it is computed otherwise, and what it is made of is much nearer"

ANCESTORS = 64  # rows in which an index is looked for, of which a leap was made
RANKS = 8  # how many ranks are asked whether their optimizers stepped again


@dataclass(slots=True)
class Judge:
    """Finds the origins of a comparison, with their classes and reasons.

    noise: how far apart noise runs are; None where there are no noise runs.
    agreed: where the runs call modules differently for equal work (`origins.cuts`), the step whose
        other records were found equal but for rounding; None where they do not.
    unplaced: for how many more origins the differing elements are located, which reads values.
    """

    frontier: Frontier
    measures: Measures
    noise: Envelope | None = None
    agreed: int | None = None
    changes: Changes = field(init=False)
    classes: OriginClassifier = field(init=False)
    unplaced: int = 20

    def __post_init__(self) -> None:
        self.changes = Changes(self.frontier)
        self.classes = OriginClassifier(
            self.frontier, self.measures, self.changes, self.noise, self.agreed
        )

    def origins(self) -> list[Origin]:
        """Return the origins in order of execution.

        There is one origin for each group of records (`origins.judged_together`), whose
        differences have one cause. Six kinds of records are origins although their inputs differ
        already: the first NaN or infinity of one run alone, a leap of the error
        (`rounding.jumps`), running moments of a batch norm that differ more than its result
        (`rounding.moments`), the first update of an optimizer whose settings differ, a parameter
        that one run alone wrote after the optimizer's step, and a value whose formula both runs
        state differently.
        """
        origins = [self._origin(group) for group in groups_of_origins(self.frontier)]
        if not any(origin.cls == "nonfinite" for origin in origins):
            origins += self._overflow()
        leap = jump(self.frontier, self.measures, self.classes.overflows)
        if leap is not None and not (self._covered(leap.row) or self._follows_an_index(leap.row)):
            origins = self._with_leap(origins, leap)
        hidden = hidden_by_a_norm(self.frontier, self.measures)
        if hidden is not None and not self._covered(hidden):
            origins = self._with_leap(origins, Jump(hidden, 0.0), MOMENTS)
        turn = turning(self.frontier, self.measures)
        origins = origins if turn is None else self._with_leap(origins, Jump(turn, 0.0), OPTIMIZER)
        written = written_by_one_run(self.frontier, self.measures)
        if written is not None and not self._covered(written):
            origins = self._with_leap(origins, Jump(written, 0.0), WRITTEN, in_order=True)
        other = stated(self.frontier, self.measures, self.changes)
        return origins if other is None else self._with_leap(origins, Jump(other, 0.0), FORMULA)

    def _covered(self, row: int) -> bool:
        return self.classes.covering.covers(self.classes.pair(row))

    def _follows_an_index(self, row: int) -> bool:
        """Return whether a row or a record behind it reads an index that rounding may decide.

        Behind it are those parents in the step that differ, their parents that differ, and so on,
        up to ANCESTORS rows.
        """
        rows, seen = [row], {row}
        while rows and len(seen) <= ANCESTORS:
            one = rows.pop()
            if self.classes.computed.is_decided_before(one):
                return True
            more = set(self.frontier.parents(one)) - seen
            more = {other for other in more if self.frontier.status[other] == DIFFERS}
            seen |= more
            rows += sorted(more)
        return False

    def _with_leap(
        self, origins: list[Origin], leap: Jump, why: str = "", *, in_order: bool = False
    ) -> list[Origin]:
        """Return `origins` with one more at the row of `leap`, unless a fault comes before it.

        A leap is a record whose error is far larger than those before it. A fault is an origin
        whose class is in `BAD`, up to the step of the leap. The new origin replaces another origin
        at the same place.
        why: the note of the new origin where something else than its error makes it one.
        in_order: whether what was executed in the leap's step after it follows from it, and is no
            origin.
        """
        place = place_at(self.frontier.alignment.a, leap.row)
        kept = origins
        if in_order:
            own = self.frontier.alignment.a.order[leap.row]
            kept = [one for one in origins if one.place.step != place.step or self._at(one) < own]
        if any(origin.cls in BAD and origin.place.step <= place.step for origin in kept):
            return origins
        group = OriginGroup(
            leap.row, (leap.row,), 1, (place.rank,), self.frontier.ancestry(leap.row).ops
        )
        note = f"{leap.times:,.0f} times the error of anything before it in the step"
        note = note if leap.times else why
        added = replace(self._origin_of(group, "not_rounding", note), leap=leap.times or 1.0)
        before = [
            origin for origin in kept if origin.place.step <= place.step and origin.place != place
        ]
        return [*before, added, *(origin for origin in kept if origin.place.step > place.step)]

    def _at(self, origin: Origin) -> int:
        """Return where an origin's record is in A's order of execution."""
        a, place = self.frontier.alignment.a, origin.place
        which = a.of_tensor(place.name, place.kind, place.rank) & (a.step == place.step)
        which &= (a.pass_index == place.pass_index) & (a.call == place.call)
        return int(a.order[which].min())

    def _overflow(self) -> list[Origin]:
        """Return an origin for the first record that is NaN or infinite in one run alone; else [].

        The first record is that of the earliest step, and there the first in order of execution. It
        is an origin although its inputs differ already: no rounding grows into NaN or infinity
        where the noise runs stay finite. [] where a noise run is NaN or infinite in any of these
        records. Gradients of steps that both runs skipped, and gradients that overflow by a larger
        loss scale alone, do not count.
        """
        which = self.measures["nonfinite"] > 0
        every = self.frontier.alignment.a_row[self.measures.pair]
        which &= ~(self.classes.skips.in_both(every) | self.classes.overflows.of(every))
        which &= ~are_masked(self.frontier.alignment, every)
        if self.noise is not None and (which & self.noise.nonfinite).any():
            return []
        alignment = self.frontier.alignment
        rows = alignment.a_row[self.measures.pair[which]]
        if not len(rows):
            return []
        row = int(rows[np.lexsort((alignment.a.order[rows], alignment.a.step[rows]))[0]])
        ops = self.frontier.ancestry(row).ops
        rank = alignment.a.tensors[alignment.a.tensor[row]].rank
        group = OriginGroup(row, (row,), len(rows), (rank,), ops)
        note = "NaN or infinity in one run alone, of inputs that differ already"
        return [self._origin_of(group, "nonfinite", note + self.classes.alone(row))]

    def _origin(self, group: OriginGroup) -> Origin:
        """Return the origin of a group: its first record, unless another one has a worse class.

        Evaluations state no operations. So where an evaluation comes first, a record of the
        training may show a fault that the evaluation's record does not. And where the optimizer of
        one rank stepped again, the gradients of other ranks are reduced with those of another step.
        """
        group = self._of_rank(group)
        cls, note = self.classes.of(group.row)
        others = (*self._worst(group), *group.elsewhere)
        for worst in others if cls not in BAD else ():
            other, why = self.classes.of(worst)
            if other in BAD:
                group = replace(group, row=worst, ops=self.frontier.ancestry(worst).ops)
                cls, note = other, why
                break
        return self._origin_of(group, cls, note)

    def _of_rank(self, group: OriginGroup) -> OriginGroup:
        """Return the group, narrowed to the one rank whose optimizer stepped without a backward.

        The group is returned as it is where this holds of no rank or of several.
        """
        alignment = self.frontier.alignment
        a, only = alignment.a, alignment.only_a
        if len(group.ranks) < 2:
            return group
        # Where an optimizer steps again, its rank has no backward pass, but the other run has.
        lone = a.tensor[only[a.step[only] == a.step[group.row]]]
        tensors = [a.tensors[number] for number in np.unique(lone).tolist()]
        lone_b = alignment.b.tensor[alignment.only_b]
        tensors += [alignment.b.tensors[number] for number in np.unique(lone_b).tolist()]
        ranks = {tensor.rank for tensor in tensors if tensor.kind == "pass_grad"}
        rows = [row for row in group.on_ranks if a.tensors[a.tensor[row]].rank in ranks]
        again = [row for row in rows[:RANKS] if stepped_again(self.frontier, row)]
        if len(again) != 1:
            return group
        return replace(group, row=again[0], ranks=(a.tensors[a.tensor[again[0]]].rank,))

    def _worst(self, group: OriginGroup) -> list[int]:
        """Return, for each kind of record in a group, the row with the largest error.

        A group has one cause. The rows are sorted by their error, the
        largest first. A kind whose largest error is that of `group.row` has no row in the result.
        Kinds are kept apart, since an optimizer makes updates and its state in one group, and
        the error of an update is relative to the parameter, that of state to the state itself.
        """
        errors = {row: self._error(row) for row in group.rows}
        worst: dict[str, int] = {}
        for row in sorted(errors, key=lambda one: -errors[one]):
            a = self.frontier.alignment.a
            worst.setdefault(a.tensors[a.tensor[row]].kind, row)
        return [row for row in worst.values() if row != group.row]

    def _error(self, row: int) -> float:
        """Return the error of a row in eps.

        Infinite for NaN and infinities, -1 where it is unknown.
        """
        measure = self.classes.measure(self.classes.pair(row))
        if measure.nonfinite:
            return np.inf
        error = size_of_error(self.frontier, row, measure)
        return -1.0 if np.isnan(error) else error

    def _origin_of(self, group: OriginGroup, cls: str, note: str) -> Origin:
        row, front = group.row, self.frontier
        pair = self.classes.pair(row)
        measure = self.classes.measure(pair)
        ancestry = front.ancestry(row)
        outside = cls in ("starts_unequal", "window_start")
        direct = [] if outside else [link for link in ancestry.parents if not link.saved]
        parents = [join(link.name, link.kind) for link in direct]
        changed = (self.changes.given if outside else self.changes.of)(row, measure)
        if cls == "not_rounding" and not name_a_change(changed):
            changed = (*self.changes.unkept(row), *changed)
        ops = ((), ()) if outside else self.changes.calls.operations(row)
        return Origin(
            place=place_at(front.alignment.a, row),
            cls=cls,
            ops=() if outside else group.ops,
            parents=tuple(dict.fromkeys(parents)),
            measure=measure,
            max_ulp=None if measure.measured == "summary" else max_ulp(front.alignment, pair),
            why=reason(front, group, measure, note, changed, outside=outside),
            amongst=group.amongst,
            where=self._where(pair),
            orphaned=bool(front.parent_only_in_a[row])
            or bool(self.changes.calls.made_of_alone(row)),
            changed=changed,
            ops_a=tuple(op.name for op in ops[0]),
            ops_b=tuple(op.name for op in ops[1]),
            evidence=(front, row),
        )

    def _where(self, pair: int) -> str:
        """Return which elements of a pair differ; "" after the first origins, to save time.

        Each call counts down `unplaced`.
        """
        self.unplaced -= 1
        return whereabouts(self.frontier.alignment, pair) if self.unplaced >= 0 else ""
