"""The class of each origin: what kind of difference begins there.

rounding          rounding explains it
not_rounding      a fault: more than rounding, or the runs state different computations
nonfinite         NaN or infinity in one run alone
nondeterministic  the noise runs differ there too, though their inputs are equal
starts_unequal    it came from outside: data, parameters or seeds were unequal from the start
window_start      what led to it was not recorded, as before the first recorded step

This file holds the order of the questions by which a class is found. The answers are in
`external_causes` (mostly starts_unequal), `missing_records` (window_start) and `computed_rows` (the
other four, by the size of the error). What the classes of all origins say of the two runs is
decided in `verdict`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Overflows, Role, Skips
from anchorlib.diagnosis.judgement.changes import Changes, stepped_again, untrained_since
from anchorlib.diagnosis.judgement.computed_rows import ComputedRows
from anchorlib.diagnosis.judgement.external_causes import ExternalCauses
from anchorlib.diagnosis.judgement.missing_records import MissingRecords
from anchorlib.diagnosis.judgement.noise import Covering, Envelope
from anchorlib.diagnosis.sizes import Measure, Measures

__all__ = ["BAD", "OriginClassifier"]

BAD = ("not_rounding", "nonfinite")
"""The classes that are faults."""


@dataclass(slots=True)
class OriginClassifier:
    """Finds the class of an origin, a row of A that differs although all its parents are equal.

    Questions are asked in a fixed order (`_class`), and the first that is answered decides: did the
    difference come from outside (`outside`), are records missing that led to it (`missing`), did an
    optimizer step otherwise? What none of them answers was computed, and the size of its error
    decides (`computed`).

    noise: how far apart noise runs are; None without noise runs.
    agreed: where the runs call modules differently for equal work, the step whose other records
    were found equal but for rounding; None where they do not.
    """

    frontier: Frontier
    measures: Measures
    changes: Changes
    noise: Envelope | None = None
    agreed: int | None = None
    outside: ExternalCauses = field(init=False)
    missing: MissingRecords = field(init=False)
    computed: ComputedRows = field(init=False)
    skips: Skips = field(init=False)
    overflows: Overflows = field(init=False)
    covering: Covering = field(init=False)

    def __post_init__(self) -> None:
        self.outside = ExternalCauses(self.frontier, self.measures, self.changes)
        self.missing = MissingRecords(self.frontier)
        self.computed = ComputedRows(
            self.frontier, self.measures, self.changes, self.noise, self.agreed
        )
        self.skips, self.overflows = self.computed.skips, self.computed.overflows
        self.covering = self.computed.covering

    def of(self, row: int) -> tuple[str, str]:
        """Return the class of an origin, such as "rounding", and the reason in words, or "".

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
        """Return the class of a row, and why: the answer to the first question that has one."""
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
        if role != Role.INPUT and self.outside.is_constant(row, pair):
            return self.computed.of(row, pair, measure)
        if loose := self.outside.loose(row, measure):
            return loose
        cls, note = self.computed.of(row, pair, measure)
        return cls, "; ".join(filter(None, (self.outside.changed_since(row), note)))

    def _stepped_otherwise(self, row: int) -> str:
        """Return a clause if an optimizer step explains a row: made twice, or left out; else "".

        It says which run's optimizer stepped again without a backward, updated a parameter of the
        row more often, or left a parameter unchanged for want of a gradient.
        """
        if run := stepped_again(self.frontier, row):
            return f"{run}'s optimizer stepped again, without a backward pass in between"
        if more := self.changes.stepped_more(row):
            return more
        return untrained_since(self.frontier, row)
