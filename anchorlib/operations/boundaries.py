"""Boundaries: tells whether differing operations of two runs had equal inputs and equal outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anchorlib.operations.flow import Flow
from anchorlib.operations.op import Op, OpKey, op_key

__all__ = ["Boundaries", "Side"]


class Side(NamedTuple):
    """The operations of one run, and their partners in the other run.

    An operation's partner is the operation of the other run that it was aligned with.

    flow: finds which operations of this run computed the inputs of an operation.
    partners: the partner of each operation that has one, by `op_key` of the operation.
    ahead: what is added to a step of this run to get the step of the other run.
    """

    flow: Flow
    partners: Mapping[OpKey, Op]
    ahead: int = 0


class Boundaries:
    """Compares the tensors that enter and leave blocks (consecutive operations) of two runs."""

    def __init__(self, a: Side, b: Side) -> None:
        self._a, self._b = a, b

    def inputs_equal(self, a: Sequence[Op], b: Sequence[Op]) -> bool | None:
        """Return whether all inputs of two blocks that can be compared have equal bits.

        The inputs are the tensors that a block takes and did not compute. An input that an
        operation of the step computed is looked for among the outputs of this operation's partner
        in the other run. An input from before the step (a parameter, the batch), or whose maker is
        unknown, is looked for among all tensors of the other run's step. Inputs without a digest,
        or whose maker has no partner with digests, cannot be compared. Returns None if no input can
        be compared.

        a, b: the operations of run A's block and of run B's block.
        """
        known = [*_given(a, self._a, self._b), *_given(b, self._b, self._a)]
        return all(known) if known else None

    def outputs_equal(self, a: Sequence[Op], b: Sequence[Op]) -> bool | None:
        """Return whether the result of either block is among the outputs of the other block.

        The result of a block is the first output of its last operation. If one block is empty, the
        result of the other is looked for among the inputs of the other itself: if it is there, the
        block changed no bits. Returns None if the digests that have to be compared are not known.

        a, b: the operations of run A's block and of run B's block, of which one may be empty.
        """
        if not (a and b):
            side = self._a if a else self._b
            went = {one.digest for one in side.flow.into(a or b)}
            came = (a or b)[-1].outputs[0].digest
            return None if came is None or went <= {None} else came in went
        last = [side[-1].outputs[0].digest for side in (a, b)]
        if None in last:
            return None
        made = [{one.digest for op in side for one in op.outputs} for side in (a, b)]
        return last[0] in made[1] or last[1] in made[0]


def _given(block: Sequence[Op], own: Side, other: Side) -> list[bool]:
    """Return, for each input of `block` that can be compared, whether the other run has its bits.

    An input's bits are looked for among the outputs of its maker's partner; for an input from
    before the step, or of an unknown maker, among all tensors of the other run's step. The list has
    no entry for an input without a digest, or whose maker has no partner with digests.

    block: consecutive operations of the run `own`.
    """
    known = []
    for maker, digest in own.flow.into(block):
        if digest is None:
            continue
        if maker is None:
            step = block[0].step + own.ahead
            known.append(other.flow.knows(digest, block[0].rank, step))
        elif partner := own.partners.get(op_key(maker)):
            there = {one.digest for one in partner.outputs} - {None}
            known += [digest in there] if there else []
    return known
