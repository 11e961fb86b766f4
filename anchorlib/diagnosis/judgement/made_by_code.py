"""Values that the program made of equal data, where autograd does not follow.

Such a value has no recorded parents, like data from outside. What stands around it tells that code
made it: another call of it with gradients, equal inputs beside it, the pass before, or the model of
which it is a running average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.causes import EQUAL, INPUT, Frontier, Role
from anchorlib.diagnosis.judgement.changes import Changes, original_of
from anchorlib.diagnosis.judgement.series import values, values_of_pair
from anchorlib.diagnosis.judgement.surroundings import seeds_differ
from anchorlib.diagnosis.sizes import Measure
from anchorlib.errors import StoreError
from anchorlib.scope import TRAIN

__all__ = ["MadeByCode"]

Array = np.ndarray[Any, Any]
SIGMAS = 3.0
"""By how many standard deviations a cosine has to be off zero to show that numbers depend on one
another."""
DISTINCT = 3
"""How many different numbers, moved by one and the same number, are no chance."""
NEAR = 1e-6
"""The relative difference up to which two numbers of float32 are one and the same."""
STEP = 0.5
"""How far an input may be from that of the pass before of which the program made it, relative to
that. Batches of different samples are further apart: images of digits in 0 to 1 were 0.7 at least.
"""


@dataclass(frozen=True, slots=True)
class MadeByCode:
    """Tells whether code made a value without recorded parents, of data that are equal."""

    frontier: Frontier
    changes: Changes

    def is_told_otherwise(self, row: int) -> bool:
        """Return whether the runs state that different code made a value, and the seeds are equal.

        A forward without gradients states no operations. What the runs state of other calls of this
        value, in training, counts in its place. Seeds count as equal where a run states none.
        """
        return self.changes.other_code(row) and not seeds_differ(self.frontier, row)

    def is_anchored(self, row: int) -> bool:
        """Return whether a value without parents was anchored, rather than being a parameter.

        Run A stores edges for an anchored value, and none for a parameter of a model that is not
        trained, which may come from elsewhere (a checkpoint).
        """
        a = self.frontier.alignment.a
        own = a.tensors[a.tensor[row]]
        return any(edges.name == own.name for edges in a.edges.get(own.rank, ()))

    def is_anchored_beside_equal_data(self, row: int, measure: Measure) -> bool:
        """Return whether code made an anchored value of equal data, as the inputs of its step show.

        In the step of the value, all inputs of models and all parameters that have several elements
        are equal in both runs, at least one input among them, or their difference is explained by
        another record; and the seeds do not differ. If the value were data of other samples, the
        inputs would differ, too. So the program computed the value from equal data by another
        formula: targets that one run alone normalises, for example.

        False where A's and B's value are independent of one another: the program may draw the value
        by a random generator of its own. The cosine of two independent tensors of n elements has a
        standard deviation of 1/√n; the absolute cosine must exceed SIGMAS times that. False also
        for a value that was not anchored (`is_anchored`). A shape is no matter of chance: values of
        unequal shapes are never independent, nor are values of which one has the other's elements
        in another order, or moved by one number, or equal ones far more often than by chance.
        """
        front = self.frontier
        a = front.alignment.a
        cosine = abs(1 - measure.cosine_distance)
        dependent = measure.measured == "shape" or (
            cosine > SIGMAS / math.sqrt(max(float(a.figures["numel"][row]), 1.0))
        )
        dependent = dependent or self._is_rearranged(row) or self._is_moved(row)
        dependent = dependent or self._agrees_often(row)
        if front.role[row] != Role.LOOSE or not (dependent and self.is_anchored(row)):
            return False
        rows = np.flatnonzero((a.step == a.step[row]) & (a.rank == a.rank[row]))
        rows = rows[a.figures["numel"][rows] > 1]
        equal = (front.status[rows] == EQUAL) | front.explained[rows]
        # An input may share its memory with the value, as a view of one tensor, and follow from it.
        given = a.where(lambda one: one.kind == "value" and bool(INPUT.search(one.name)))
        inputs = (front.role[rows] == Role.INPUT) | given[rows]
        known = bool((front.status[rows[inputs]] == EQUAL).any()) and bool(equal[inputs].all())
        same_start = bool(equal[front.role[rows] == Role.PARAMETER].all())
        return known and same_start and not seeds_differ(front, row)

    def _is_rearranged(self, row: int) -> bool:
        """Return whether B has A's elements in another order, most of which are distinct."""
        try:
            both = values_of_pair(self.frontier.alignment, row)
        except StoreError:
            return False
        if both is None:
            return False
        mine, other = map(np.sort, both)
        return np.array_equal(mine, other) and 2 * len(np.unique(mine)) > len(mine)

    def _agrees_often(self, row: int) -> bool:
        """Return whether A's and B's integers are equal far more often than by chance.

        So are targets of which one run leaves out those of padding. Elements with the number that
        is most common in A or in B do not count: it may stand for what is left out. By chance,
        independent numbers are equal as often as their frequencies tell, give or take 2·SIGMAS
        standard deviations.
        """
        table = self.frontier.alignment.a
        if dtypes.dtype(table.dtypes[table.dtype[row]]).family != "int":
            return False
        try:
            both = values_of_pair(self.frontier.alignment, row)
        except StoreError:
            return False
        if both is None or not len(both[0]):
            return False
        common = [_most_common(side) for side in both]
        counted = ~(np.isin(both[0], common) | np.isin(both[1], common))
        mine, other = (side[counted] for side in both)
        count = len(mine)
        if not count:
            return False
        _, codes = np.unique(np.concatenate((mine, other)), return_inverse=True)
        times = [np.bincount(side, minlength=2 * count) for side in np.split(codes.ravel(), 2)]
        chance = float((times[0] * times[1]).sum()) / count**2
        deviation = math.sqrt(max(chance * (1 - chance), 1 / count) / count)
        return float((mine == other).mean()) - chance > 2 * SIGMAS * deviation

    def _is_moved(self, row: int) -> bool:
        """Return whether B's elements are A's plus one number, or times one, where they differ.

        All records of the row's tensor in the step are taken together, as of several micro-batches.
        At least DISTINCT different numbers of A have to differ, so that it is no chance.
        """
        a = self.frontier.alignment.a
        rows = np.flatnonzero((a.tensor == a.tensor[row]) & (a.step == a.step[row]))
        try:
            pairs = [values_of_pair(self.frontier.alignment, one) for one in rows.tolist()]
        except StoreError:
            return False
        known = [pair for pair in pairs if pair is not None]
        if len(known) < len(pairs):
            return False
        mine, other = (np.concatenate(side) for side in zip(*known, strict=True))
        apart = mine != other
        mine, other = mine[apart], other[apart]
        if len(np.unique(mine)) < DISTINCT:
            return False
        with np.errstate(all="ignore"):
            followed = (other - mine, other / mine)
        return any(
            bool(np.isfinite(one).all() and np.ptp(one) <= NEAR * np.abs(one).max())
            for one in followed
        )

    def is_iterate(self, row: int, pair: int) -> bool:
        """Return whether an input is, in both runs, the input of the pass before, moved a little.

        An attack, or a sampler that follows gradients, moves its samples a little from pass to
        pass, where autograd does not follow. A move is small if its norm is at most STEP times that
        of the earlier input. False where the earlier input differs already, and where values were
        not kept. pair: the index, in the alignment, of the row's pair.
        """
        alignment = self.frontier.alignment
        a = alignment.a
        earlier = (a.tensor == a.tensor[row]) & (a.step == a.step[row]) & (a.shape == a.shape[row])
        earlier &= (a.pass_index < a.pass_index[row]) & (a.phase == a.phase[row])
        rows = np.flatnonzero(earlier)
        if not len(rows) or self.frontier.status[rows[-1]] != EQUAL:
            return False
        try:
            before, *after = (
                values(table, at)
                for table, at in (
                    (a, int(rows[-1])),
                    (a, row),
                    (alignment.b, int(alignment.b_row[pair])),
                )
            )
        except StoreError:
            return False
        whole = dtypes.dtype(a.dtypes[a.dtype[row]]).family != "float"
        if whole or before is None or any(one is None or one.size != before.size for one in after):
            return False
        steps = [float(np.linalg.norm(one - before)) for one in after if one is not None]
        return steps[0] > 0 and max(steps) <= STEP * float(np.linalg.norm(before))

    def is_written_in_training(self, row: int) -> bool:
        """Return whether an evaluation is the first to record what training wrote into a buffer.

        Batch norm updates its running statistics in training, where they have no record, and reads
        them in evaluation. The module has to have computed in the training of the step before, and
        every record before the row's, in order of execution, has to be equal in both runs: then
        equal batches were averaged otherwise, as with another momentum. False where the seeds
        differ.
        """
        front = self.frontier
        a, tensor = front.alignment.a, front.alignment.a.tensors[front.alignment.a.tensor[row]]
        if front.role[row] != Role.BUFFER or a.phases[a.phase[row]] == TRAIN:
            return False
        module = tensor.name.rpartition(".")[0]
        trained = a.of_tensor(module, "value", tensor.rank) & (a.step == a.step[row] - 1)
        trained &= np.array([phase == TRAIN for phase in a.phases], bool)[a.phase]
        trained &= a.attempt == a.attempt[row]
        before = (a.order < a.order[row]) & (a.rank == tensor.rank)
        equal = bool((front.status[before] == EQUAL).all())
        return equal and bool(trained.any()) and not seeds_differ(front, row)

    def is_average(self, row: int) -> bool:
        """Return whether a copied model's parameter was computed from equal ones of the original.

        The copy (a running average of parameters, for example) may have its first record after some
        steps. Code has computed it from the parameters of the original, which have records up to
        the step before, all equal in both runs. False where the seeds differ.
        row: a parameter of the copy in A.
        """
        front = self.frontier
        a = front.alignment.a
        tensor, step = a.tensors[a.tensor[row]], int(a.step[row])
        original = original_of(a, tensor.rank, tensor.name)
        rows = np.flatnonzero(a.of_tensor(original, "value", tensor.rank) & (a.step < step))
        known = bool(len(rows)) and int(a.step[rows].max()) == step - 1
        return known and bool((front.status[rows] == EQUAL).all()) and not seeds_differ(front, row)


def _most_common(numbers: Array) -> float:
    """Return the number that occurs most often."""
    found, counts = np.unique(numbers, return_counts=True)
    return float(found[counts.argmax()])
