"""Whether equal bits went into a difference of operations, and whether equal bits came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anchorlib.operations.flow import Flow, Place, place_of
from anchorlib.operations.op import Op

__all__ = ["Boundaries", "Side"]


class Side(NamedTuple):
    """One run as the other sees it.

    partners: its operations' places -> the operations of the other run that stand for them.
    ahead: by how many steps the other run counts further.
    """

    flow: Flow
    partners: Mapping[Place, Op]
    ahead: int = 0


class Boundaries:
    """What goes in and out of blocks of operations of two runs."""

    def __init__(self, a: Side, b: Side) -> None:
        self._a, self._b = a, b

    def inputs_equal(self, a: Sequence[Op], b: Sequence[Op]) -> bool | None:
        """Whether all that both are known to have been given is equal; None if nothing is known.

        What was made by operations without a partner says nothing: it differs as these do.
        """
        known = [*_given(a, self._a, self._b), *_given(b, self._b, self._a)]
        return all(known) if known else None

    def outputs_equal(self, a: Sequence[Op], b: Sequence[Op]) -> bool | None:
        """Whether the last tensor that one of them made is made by the other too.

        Where one run has no operation there, whether what came out is what went in.
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
    """Of each tensor that went into a block whether the other run has its bits there."""
    known = []
    for maker, digest in own.flow.into(block):
        if digest is None:
            continue
        if maker is None:
            step = block[0].step + own.ahead
            known.append(other.flow.knows(digest, block[0].rank, step))
        elif partner := own.partners.get(place_of(maker)):
            there = {one.digest for one in partner.outputs} - {None}
            known += [digest in there] if there else []
    return known
