"""Flow: from which operations a run's tensors came, past operations that only move bits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from anchorlib.operations.op import Op, OpKey, op_key
from anchorlib.operations.spelling import base_name, computes, moved

__all__ = ["Entering", "Flow"]


class Entering(NamedTuple):
    """An input tensor of an operation, with the operation that computed it.

    maker: the operation that computed the tensor; None for a tensor from before the step, or where
        the maker is not known.
    digest: the digest of the tensor's bits, as the maker left them; None where it is not known.
    """

    maker: Op | None
    digest: str | None


class Flow:
    """The operations of one run; finds for each operation which operations computed its inputs."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = {op_key(op): op for op in ops}
        self._digests: dict[tuple[int, int], set[str]] = {}
        for op in ops:
            known = self._digests.setdefault((op.rank, op.step), set())
            known |= {one.digest for one in (*op.inputs, *op.outputs) if one.digest}

    def knows(self, digest: str, rank: int, step: int) -> bool:
        """Return whether an operation of this rank and step has a tensor with this digest."""
        return digest in self._digests.get((rank, step), ())

    def signature(self, op: Op) -> tuple[str, ...]:
        """Return (short name of the operation, then the sorted names of its inputs' makers).

        A maker is an operation that computed an input. Its name is "" for an input from before the
        step, or where the maker is not known.
        """
        makers = [one.maker for one in self.entering(op)]
        return (base_name(op.op), *sorted(base_name(one.op) if one else "" for one in makers))

    def entering(self, op: Op) -> Iterator[Entering]:
        """Yield the inputs of an operation, in the order of its arguments.

        Views and copies are followed back to the operation that computed the bits. An input is
        skipped if its bits come from an operation that makes a constant or allocates memory, such
        as zeros or empty.
        """
        for number, operand in enumerate(op.inputs):
            maker = self._maker(op, number)
            digest = operand.digest
            while maker is not None and not computes(maker):
                taken = moved(maker)
                if taken is None:
                    break
                digest = maker.inputs[taken].digest or digest
                maker = self._maker(maker, taken)
            if maker is not None and not computes(maker):
                continue
            yield Entering(maker, digest)

    def into(self, block: Sequence[Op]) -> Iterator[Entering]:
        """Yield the inputs of a block's operations that were not computed in the block.

        block: consecutive operations. Inputs whose maker is not known are yielded, too.
        """
        inside: Collection[OpKey] = {op_key(op) for op in block}
        for op in block:
            for one in self.entering(op):
                if one.maker is None or op_key(one.maker) not in inside:
                    yield one

    def _maker(self, op: Op, number: int) -> Op | None:
        at = op.producers[number] if number < len(op.producers) else None
        return None if at is None else self._ops.get((op.rank, op.step, at))
