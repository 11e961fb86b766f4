"""Turns a step's operations into entries of the log: each structure once, then a row per block.

A block is some consecutive operations of forward, of backward or of the optimizer. It ends where
that changes, or when it is large enough. Only the structure of the operations decides where it
ends, so two steps that run the same operations have the same blocks and share their structures.
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
"""A tensor of an operation without its values: argument, dtype, shape, stride, has a digest."""

FLOAT: Final = "\0"
"""Stands in the text of the arguments in place of a number, which the row holds."""

_OPS: Final = 256  # operations of one block at most
_OPERANDS: Final = 1024  # operands of one block at most, unless a single operation has more


class OpForm(NamedTuple):
    """An operation without its values.

    producers: for each input how many places before this operation its maker ran; None where the
        maker is not known.
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

    digests: 16 bytes for each input that has a digest, then 16 for each output that has one.
    floats: the floating-point numbers among its arguments.
    """

    form: OpForm
    pass_index: int
    digests: bytes
    floats: tuple[float, ...]


class OpLog:
    """Makes the entries of a rank's steps; it states no structure twice."""

    def __init__(self) -> None:
        self._known: dict[tuple[OpForm, ...], str] = {}

    def entries(self, step: int, ops: Sequence[TracedOp]) -> Iterator[Entry]:
        """The entries that state the operations of one step, in their order."""
        first = 0
        for block in _blocks(ops):
            forms = tuple(one.form for one in block)
            key = self._known.get(forms)
            if key is None:
                forms_as_json = [_form_fields(form) for form in forms]
                key = self._known[forms] = _hash_of(forms)
                yield {"structure": key, "ops": forms_as_json}
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
    """The part of the step that a block may not exceed: "forward", "optimizer" or "backward".

    Accumulations and repeated forwards alternate with backward operations and belong to "backward";
    otherwise each of them would end a block.
    """
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


def _form_fields(form: OpForm) -> dict[str, Any]:
    """A form as JSON, without its empty fields."""
    fields = zip(OpForm._fields, form, strict=True)
    return {name: value for name, value in fields if value not in ((), "", None)}


def _hash_of(forms: tuple[OpForm, ...]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(forms, separators=(",", ":")).encode())
