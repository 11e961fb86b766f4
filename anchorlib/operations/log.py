"""Turns a step's operations into log entries: each structure once, then a row for each block.

A block is some consecutive operations of forward, of backward or of the optimizer. It ends where
the next of these parts begins, or when it is large enough. The structure of a block is all that is
known of its operations but the values. Only the structure decides where a block ends, so two steps
that run the same operations have the same blocks and share their structures.
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
"""An operation's tensor without values: argument, dtype, shape, stride, whether it has a digest."""

FLOAT: Final = "\0"
"""A placeholder for a number in the text of arguments; the row of the log has the number."""

# `json.dumps` would note each tuple while it looks for circles, which forms do not have.
_encode: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_OPS: Final = 256  # operations of one block at most
_OPERANDS: Final = 1024  # operands of one block at most, unless a single operation has more
_MANY: Final = 1 << 14  # operations whose structures are kept from one trace to the next


class OpForm(NamedTuple):
    """The structure of an operation: all that is known of it without its values.

    All fields but this one are as in `Op`:

    producers: for each input how many operations earlier its maker ran; None where the maker is
        not known.
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
    """An operation as it was traced: its structure, and its digests and numbers.

    form: the structure.
    pass_index: the number, in the step, of the pass in which the operation ran.
    digests: 16 bytes for each input that has a digest, then 16 for each output that has one.
    floats: the floating-point numbers among the operation's arguments, in their order.
    """

    form: OpForm
    pass_index: int
    digests: bytes
    floats: tuple[float, ...]


class OpLog:
    """Makes the log entries of a rank's traced steps.

    A structure (operations without their values) is stated once, until `restate` is called.
    """

    def __init__(self) -> None:
        self._keys: dict[tuple[OpForm, ...], str] = {}
        self._statements: dict[str, Entry] = {}
        self._stated: set[str] = set()
        self._forms: list[OpForm] = []
        self._blocks: list[tuple[tuple[OpForm, ...], str]] = []

    def restate(self) -> None:
        """Begin another trace: forget which structures (operations without values) were stated.

        `entries` then states each structure again, since a sink (what stores the entries) that
        failed may have lost what an earlier trace stated.
        """
        self._stated.clear()
        if sum(map(len, self._keys)) > _MANY:
            self._keys.clear()
            self._statements.clear()

    def entries(self, step: int, ops: Sequence[TracedOp]) -> Iterator[Entry]:
        """Yield the entries that state the operations of one step, in their order.

        There is a row for each block. Before it comes the block's structure, unless this structure
        was stated already. What is yielded counts as stated.

        ops: all operations of the step, in the order in which they ran.
        """
        forms = [one.form for one in ops]
        if forms != self._forms:  # a step mostly runs what the step before it ran
            self._blocks = [(block, self._key(block)) for block in _blocks(forms)]
            self._forms = forms
        first = 0
        for block, key in self._blocks:
            if key not in self._stated:
                self._stated.add(key)
                yield self._statement(block, key)
            end = first + len(block)
            yield {"row": _row(step, first, key, ops[first:end])}
            first = end

    def _statement(self, block: tuple[OpForm, ...], key: str) -> Entry:
        """Return the log entry that states the structure of some operations under its hash `key`.

        The entry is made once and kept, since each traced step may state it again.
        """
        statement = self._statements.get(key)
        if statement is None:
            ops = [_form_fields(form) for form in block]
            statement = self._statements[key] = {"structure": key, "ops": ops}
        return statement

    def _key(self, block: tuple[OpForm, ...]) -> str:
        """Return the hash of a block's structure, by which the log names the structure.

        Each structure is hashed once; the hash is kept.
        """
        key = self._keys.get(block)
        if key is None:
            key = self._keys[block] = _hash_of(block)
        return key


def _blocks(forms: Iterable[OpForm]) -> Iterator[tuple[OpForm, ...]]:
    block: list[OpForm] = []
    operands, before = 0, ""
    for form in forms:
        size = len(form.inputs) + len(form.outputs)
        group = _group(form)
        ends = block and group != before
        if ends or len(block) == _OPS or (block and operands + size > _OPERANDS):
            yield tuple(block)
            block, operands = [], 0
        before = group
        block.append(form)
        operands += size
    if block:
        yield tuple(block)


def _group(form: OpForm) -> str:
    """Return the part of the step in which an operation is: "forward", "optimizer" or "backward".

    A block (some consecutive operations in one row of the log) never spans two parts. Accumulations
    and repeated forwards alternate with backward operations and so count as "backward"; otherwise
    each of them would end a block.
    """
    return form.stage if form.stage in ("forward", "optimizer") else "backward"


def _row(step: int, first: int, key: str, block: Sequence[TracedOp]) -> dict[str, Any]:
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
    """Return an operation's structure (all but its values) as JSON, without empty fields."""
    fields = zip(OpForm._fields, form, strict=True)
    # Empty texts, tuples and None are left out; False and 0 are kept, as they say something.
    return {name: value for name, value in fields if value or isinstance(value, int)}


def _hash_of(forms: tuple[OpForm, ...]) -> str:
    return xxhash.xxh3_128_hexdigest(_encode(forms).encode())
