"""Operations that do not round: they move, drop or repeat elements, or change their signs."""

from __future__ import annotations

import re

__all__ = ["unrounding"]

UNROUNDING = re.compile(
    r"^(T|View|UnsafeView|ReshapeAlias|Reshape|Slice|Select|Cat|Stack|Transpose|Permute|Expand"
    r"|Clone|Unsqueeze|Squeeze|Split\w*|UnsafeSplit|Narrow|Unbind|Alias|Detach|Relu|Neg|Abs"
    r"|MaskedFill|Where|ConstantPadNd|Flip|Roll|Unfold|AsStrided|Index|IndexSelect|Gather"
    r"|Contiguous|Flatten|MaxPool\w*|Diagonal|Repeat|Movedim|Swapdims)Backward\d*$"
)


def unrounding(ops: tuple[str, ...], *, gradient: bool, parents: int) -> bool:
    """Return whether none of the operations `ops` that made a record can round.

    False without operations, and for a gradient that was not computed from exactly one record. An
    operation that only moves bits in forward may add in backward: gradients that meet in one tensor
    are added, and so are the gradients of an element that was read more than once.
    gradient: whether the record is a gradient. parents: from how many records it was computed.
    """
    if not ops or (gradient and parents != 1):
        return False
    adding = re.compile(r"^(Expand|Repeat|Unfold|AsStrided|Index\w*|Gather|MaxPool\w*)Backward")
    return all(UNROUNDING.match(op) and not (gradient and adding.match(op)) for op in ops)
