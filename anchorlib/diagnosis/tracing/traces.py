"""Two traced runs: their operations aligned, and those that made each origin.

An origin is a record where the runs part. Operations show how two runs computed a record. Whether
an operation is to blame is decided by bits alone: origins are found, classed and judged without
traces, which only add words to the origins.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from anchorlib.diagnosis.judgement import Origin, TracedPath
from anchorlib.diagnosis.pairing import Alignment
from anchorlib.diagnosis.tracing.op_segments import OpSegments, Steps
from anchorlib.diagnosis.tracing.telling import clause
from anchorlib.errors import DamagedError, OptionError
from anchorlib.names import escape
from anchorlib.operations import Op, OpAlignment, OpDifference, align_ops, base_name
from anchorlib.reading import Run

__all__ = ["Traces", "traces_of"]

HOW: Final = "session.trace(2), ANCHOR_TRACE=0:2 or `anchor run --trace 0:2 -- COMMAND`"
CLAUSES: Final = 3  # the most clauses that are added to an origin
COUNTED: Final = re.compile(r"^[AB] (has|computes it by) ")
"""Clauses that were concluded from autograd's statements; a trace shows the operations exactly."""
SOMEWHERE: Final = "somewhere in "


@dataclass(frozen=True, slots=True)
class Traces:
    """The traced operations of two runs.

    operations: the aligned operations; None where they cannot be aligned.
    notes: what was not traced, or why nothing is aligned, a line each.
    steps: the operations of A and of B, by rank and step. runs: A and B.
    """

    operations: OpAlignment | None
    notes: tuple[str, ...]
    steps: tuple[Steps, Steps] = field(default=({}, {}), repr=False)
    runs: tuple[Run, Run] | None = field(default=None, repr=False)

    def with_operations(self, origins: Sequence[Origin]) -> list[Origin]:
        """Return the origins with both runs' traced operations added; classes do not change.

        Origins whose operations were not traced in both runs are returned as they are.
        """
        evidence = next((origin.evidence for origin in origins if origin.evidence), None)
        if evidence is None or self.operations is None:
            return list(origins)
        segments = OpSegments.of(evidence[0].alignment, self.steps)
        return [self._origin(origin, evidence[0].alignment, segments) for origin in origins]

    def _origin(
        self, origin: Origin, alignment: Alignment, segments: tuple[OpSegments, OpSegments]
    ) -> Origin:
        if origin.evidence is None:
            return origin
        row = origin.evidence[1]
        at = int(np.searchsorted(alignment.a_row, row))
        a, b = segments[0].before(row), segments[1].before(int(alignment.b_row[at]))
        if a is None or b is None:
            return origin
        mine = tuple(_within(self.operations.every if self.operations else (), a, b))
        traced = replace(
            origin, ops_a=_names(a), ops_b=_names(b), differences=mine, path=self._path(a, b)
        )
        clauses = [
            clause(difference) for difference in mine if difference.outputs_equal is not True
        ]
        return _reworded(traced, list(dict.fromkeys(clauses))[:CLAUSES])

    def _path(self, a: tuple[Op, ...], b: tuple[Op, ...]) -> TracedPath | None:
        """Return the operations of both runs that lead to an origin; None where a run ran none.

        a, b: the operations between the origin and its parents, in A and in B.
        """
        if self.runs is None or not (a and b):
            return None
        one, two = (
            steps[ops[0].rank, ops[0].step] for steps, ops in zip(self.steps, (a, b), strict=True)
        )
        return TracedPath(a, b, (one, two), self.runs)


def traces_of(a: Run, b: Run, alignment: Alignment, *, asked: bool | None) -> Traces | None:
    """Return the traced operations of two runs; None if a run has none, or the user declined.

    asked: True: the user asked for traces; None: compare them where both runs have some; False: the
    user declined.
    Raises OptionError or DamagedError where traces were asked for and are missing or damaged, or
    have no step in common. Where they were not asked for and cannot be compared, the result has a
    note that says so, and no operations.
    """
    if asked is False:
        return None
    try:
        ops = a.ops(), b.ops()
        if asked or all(ops):
            return _aligned((a, b), ops, alignment)
    except (OptionError, DamagedError) as error:
        if asked:
            raise
        return Traces(None, (f"the operations were not compared: {escape(str(error))}",))
    return None


def _aligned(runs: tuple[Run, Run], ops: tuple[list[Op], list[Op]], alignment: Alignment) -> Traces:
    for run, own in zip(runs, ops, strict=True):
        if not own:
            name = escape(run.name)
            raise OptionError(f"no operation of {name} was traced: trace one with {HOW}")
    gaps = [(run, gap) for run in runs for gap in run.op_gaps()]
    notes = tuple(f"{escape(run.name)} lacks {escape(gap.reason)}" for run, gap in gaps)
    aligned = align_ops(
        *ops,
        names=_modules(alignment),
        step_offset=alignment.step_offset,
        partial=not all(gap.is_of_values for _, gap in gaps),
    )
    if aligned is None:
        raise OptionError(
            f"{' and '.join(escape(run.name) for run in runs)} traced no step in common: trace the "
            f"same steps with {HOW}"
        )
    return Traces(aligned, notes, (_by_step(ops[0]), _by_step(ops[1])), runs)


def _within(
    every: Iterable[OpDifference], a: Iterable[Op], b: Iterable[Op]
) -> Iterator[OpDifference]:
    """Yield those differences that contain any of the given operations of A, or of B.

    every: all differences of the two traces.
    """
    own = [{(op.rank, op.step, op.index) for op in side} for side in (a, b)]
    for difference in every:
        sides = zip((difference.a, difference.b), own, strict=True)
        if any((op.rank, op.step, op.index) in there for ops, there in sides for op in ops):
            yield difference


def _by_step(ops: Sequence[Op]) -> Steps:
    by_step: defaultdict[tuple[int, int], list[Op]] = defaultdict(list)
    for op in ops:
        by_step[op.rank, op.step].append(op)
    return by_step


def _modules(alignment: Alignment) -> dict[str, str]:
    """Return B's name of a module -> A's, for the modules that the two runs name differently.

    They follow from the tensors that were found renamed, but for guesses: if `fc.weight` is
    renamed, `fc` is. The tensors' own names are in the result too.
    """
    names: dict[str, str] = {}
    for renaming in alignment.renamed:
        if renaming.how == "guess":
            continue
        a, b = renaming.a, renaming.b
        names.setdefault(b, a)
        while a.rpartition(".")[2] == b.rpartition(".")[2] and a != b:
            a, b = a.rpartition(".")[0], b.rpartition(".")[0]
            names.setdefault(b, a)
    return names


def _names(ops: Sequence[Op]) -> tuple[str, ...]:
    return tuple(base_name(op.op) for op in ops)


def _reworded(origin: Origin, clauses: Sequence[str]) -> Origin:
    """Return the origin with clauses from the trace in place of those from autograd's nodes."""
    new = [clause for clause in clauses if not _known(clause, origin.changed)]
    if not clauses:
        return origin
    old = {clause for clause in origin.changed if COUNTED.match(clause)}
    kept = [clause for clause in origin.changed if clause not in old]
    why = [clause for clause in origin.why.split("; ") if clause and clause not in old]
    why = [clause for clause in why if not clause.startswith(SOMEWHERE)]
    return replace(origin, changed=(*new, *kept), why="; ".join([*why, *new]))


def _known(clause: str, changed: Sequence[str]) -> bool:
    """Return whether `changed` already mentions the argument that a clause is about.

    changed: what is known to differ at an origin, as clauses. False for a clause about no argument.
    """
    argument = re.fullmatch(r"\w+ (\w+) .*\|.*", clause)
    return argument is not None and any(f" {argument[1]} " in one for one in changed)
