"""Records that are missing before a row, which then may not tell where its difference began."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from anchorlib.diagnosis.causes import EQUAL, UNMATCHED, Frontier, Role, plain
from anchorlib.diagnosis.judgement.changes import passes_apart, unreached
from anchorlib.diagnosis.judgement.rounding import LEARNT
from anchorlib.diagnosis.judgement.sparse_sums import INDICES
from anchorlib.diagnosis.sizes import Measure
from anchorlib.names import escape, join

__all__ = ["MissingRecords"]

EPS32 = 2.0**-23
FAR = 1000 * EPS32
"""The relative error in a later pass that no rounding of parameters between passes can make."""

ENDED_BY, OPTIMIZERS = "steps.ended_by", ("optimizer", "optimizer2")

_UNSEEN = (
    "what led to it was not recorded",
    "what the optimizer held before that step is not known of both (was its state restored?)",
)


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
        """Say which gradients that a row depends on are missing; "" where none are.

        These are parents of an optimizer's row that B has not recorded, or unrecorded gradients by
        which a parameter may have changed before the row. The latter do not count where the row's
        error is too large to come from such a change (`_stands_still`).
        row: A's row. measure: how far apart A and B are in it.
        """
        if self._lacks_gradients(row):
            return f"what it was made of is not in B: {self._orphans(row)}"
        if self._unseen_gradients(row) and not self._stands_still(row, measure):
            return "the gradients that changed parameters were not recorded"
        return ""

    def _unseen_window(self, row: int) -> bool:
        """Return whether records may be missing between a row and the records that it depends on.

        They may be missing where recording began late, or where the row's mode keeps only some
        observations.
        """
        front = self.frontier
        if front.ancestry_incomplete[row] and front.predecessor_missing[row]:
            return True
        a = front.alignment.a
        mode = a.tensors[a.tensor[row]].mode
        folds = not plain(mode) and ("window" in mode or mode.startswith("every_n"))
        return folds or (not plain(mode) and bool(a.pass_index[row] or a.count[row] > 1))

    def _lacks_gradients(self, row: int) -> bool:
        """Return whether an optimizer's row has parents that B lacks, for no known reason.

        B may have computed such a parent, and only not recorded it. The reason is known where B's
        backward did not reach a value, and where the runs have different passes in the step.
        """
        front = self.frontier
        if front.role[row] != Role.OPTIMIZER or not front.parent_only_in_a[row]:
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
        """Return whether a row depends on a parameter that unrecorded gradients may have changed.

        False at pass 0 of step 0, before which nothing changes a parameter, and for a parameter
        that was equal when the optimizer's step before it had updated it: the program itself has
        written that one since, as one that puts an average in its place.
        """
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
            if not pass_index and self._was_equal(row):
                return False
        return any(name not in with_gradients for name in names)

    def _was_equal(self, row: int) -> bool:
        """Return whether a parameter's row follows an update of the step before, of equal bits."""
        front = self.frontier
        a = front.alignment.a
        own = a.tensors[a.tensor[row]]
        before = a.of_tensor(own.name, "updated", own.rank) & (a.step == a.step[row] - 1)
        return bool(before.any()) and bool((front.status[before] == EQUAL).all())

    def _stands_still(self, row: int, measure: Measure) -> bool:
        """Return whether a row's error is too large to come from parameters moved between passes.

        That is so where a computed row has a large error in a later pass, its tensor was equal in
        all earlier passes of the step, and the only optimizer of each run ends the step, so that it
        updates nothing between passes. Other code (SAM) may still move parameters between
        passes. But where the earlier passes are equal, such code does not move them far apart.
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
