"""A step's operations as entries of the log: each structure once, then a row a block.

A block is some operations that follow each other in forward, backward or optimizer. It ends where
that changes, and where it is large enough, which depends on the structure alone: the blocks of two
steps that run the same operations are the same.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import xxhash

from anchorlib.operations.entries import Entry

__all__ = ["FLOAT", "OpForm", "OpLog", "OperandForm", "TracedOp"]

OperandForm: TypeAlias = tuple[str, str, tuple[int, ...], tuple[int, ...], bool]
"""An operand without its values: argument, dtype, shape, stride, whether it has a digest."""

FLOAT: Final = "\0"
"""Stands in the text of the arguments where a number comes from the row."""

_OPS: Final = 256  # in a block
_OPERANDS: Final = 1024  # in a block, unless one operation alone has more


class OpForm(NamedTuple):
    """An operation without its values.

    producers: how many operations before this one each input was made; None where not known.
    """

    op: str
    stage: str
    module: str
    seq: int | None
    node: str
    where: str
    inputs: tuple[OperandForm, ...]
    outputs: tuple[OperandForm, ...]
    args: str
    producers: tuple[int | None, ...]
    mutates: tuple[int, ...]
    view: bool
    source: str
    origin: str = ""
    group: int | None = None


class TracedOp(NamedTuple):
    """An operation as it was traced.

    digests: 16 bytes for each input that has a digest, then for each such output.
    floats: the numbers among its arguments.
    """

    form: OpForm
    pass_index: int
    digests: bytes
    floats: tuple[float, ...]


class OpLog:
    """Makes entries of steps; states no structure twice."""

    def __init__(self) -> None:
        self._known: dict[tuple[OpForm, ...], str] = {}

    def entries(self, step: int, ops: Sequence[TracedOp]) -> Iterator[Entry]:
        """The entries that state the operations of one step, in their order."""
        first = 0
        for block in _blocks(ops):
            forms = tuple(one.form for one in block)
            key = self._known.get(forms)
            if key is None:
                told = [_told(form) for form in forms]
                key = self._known[forms] = _hash_of(forms)
                yield {"structure": key, "ops": told}
            yield {"row": _row(step, first, key, block)}
            first += len(block)


def _blocks(ops: Sequence[TracedOp]) -> Iterator[list[TracedOp]]:
    block: list[TracedOp] = []
    operands, before = 0, ""
    for one in ops:
        form = one.form
        size = len(form.inputs) + len(form.outputs)
        group = _group(form)
        ends = block and group != before
        if ends or len(block) == _OPS or (block and operands + size > _OPERANDS):
            yield block
            block, operands = [], 0
        before = group
        block.append(one)
        operands += size
    if block:
        yield block


def _group(form: OpForm) -> str:
    """What is mixed within backward belongs together: sums of gradients, forwards repeated."""
    return form.stage if form.stage in ("forward", "optimizer") else "backward"


def _row(step: int, first: int, key: str, block: Iterable[TracedOp]) -> dict[str, Any]:
    passes = [one.pass_index for one in block]
    return {
        "step": step,
        "first": first,
        "passes": passes[:1] if len(set(passes)) == 1 else passes,
        "structure": key,
        "digests": base64.b64encode(b"".join(one.digests for one in block)).decode(),
        "floats": [repr(number) for one in block for number in one.floats],
    }


def _told(form: OpForm) -> dict[str, Any]:
    """A form as JSON; what is empty is left out."""
    told = zip(OpForm._fields, form, strict=True)
    return {name: value for name, value in told if value not in ((), "", None)}


def _hash_of(forms: tuple[OpForm, ...]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(forms, separators=(",", ":")).encode())
