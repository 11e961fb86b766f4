"""Reads the log of operations: turns its entries into operations again."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from anchorlib.operations.entries import Entry, entry_key, whole
from anchorlib.operations.log import FLOAT
from anchorlib.operations.op import Op, Operand

__all__ = ["read_entries"]

T = TypeVar("T")
_DIGEST_BYTES: Final = 16


def read_entries(entries: Iterable[Entry], rank: int = 0) -> list[Op]:
    """Return the operations that these log entries state, sorted by step and position in the step.

    Of a step that several attempts (recordings of the rank) ran, only the operations of the last
    attempt are returned. Raises ValueError, KeyError, TypeError or IndexError for malformed entries
    and for a row whose structure is missing.

    rank: the rank whose log the entries are from.
    """
    structures: dict[str, list[Any]] = {}
    rows: dict[tuple[Any, ...], tuple[int, Mapping[str, Any]]] = {}
    for entry in entries:
        key = entry_key(entry)
        if key[0] == "structure":
            structures.setdefault(key[1], entry["ops"])
        elif key[0] == "row":
            rows.setdefault(key, (key[1], entry["row"]))
    newest: dict[int, int] = {}
    for attempt, row in rows.values():
        newest[row["step"]] = max(attempt, newest.get(row["step"], 0))
    shown = [(a, row) for a, row in rows.values() if newest[row["step"]] == a]
    shown.sort(key=lambda one: (one[1]["step"], one[1]["first"]))
    return [
        op
        for attempt, row in shown
        for op in _ops(structures[row["structure"]], row, rank, attempt)
    ]


def _ops(forms: list[Any], row: Mapping[str, Any], rank: int, attempt: int) -> Iterator[Op]:
    raw = base64.b64decode(row["digests"], validate=True)
    digests = (raw[at : at + _DIGEST_BYTES].hex() for at in range(0, len(raw), _DIGEST_BYTES))
    floats = iter(row["floats"])
    passes = row["passes"] * len(forms) if len(row["passes"]) == 1 else row["passes"]
    first = row["first"]
    for place, (form, pass_index) in enumerate(zip(forms, passes, strict=True)):
        index = first + place
        back = form.get("producers", ())
        yield Op(
            index=index,
            op=_text(form["op"]),
            stage=_text(form["stage"]),
            module=_text(form.get("module", "")),
            seq=None if form.get("seq") is None else whole(form["seq"]),
            node=_text(form.get("node", "")),
            where=_text(form.get("where", "")),
            inputs=_operands(form.get("inputs", ()), digests),
            outputs=_operands(form.get("outputs", ()), digests),
            args=_filled(_text(form.get("args", "")), floats),
            # An operation that is its own producer would be followed without end: at least 1 back.
            producers=tuple(None if n is None else index - whole(n, least=1) for n in back),
            mutates=tuple(map(whole, form.get("mutates", ()))),
            view=bool(form.get("view", False)),
            origin=_text(form.get("origin", "")),
            group=None if form.get("group") is None else whole(form["group"]),
            source=_text(form.get("source", "eager")),
            step=row["step"],
            pass_index=whole(pass_index),
            rank=rank,
            attempt=attempt,
        )


def _operands(operands: Iterable[Any], digests: Iterator[str]) -> tuple[Operand, ...]:
    return tuple(
        Operand(
            _text(argument),
            _text(dtype),
            tuple(map(whole, shape)),
            tuple(int(step) for step in stride),
            _next(digests) if has_digest else None,
        )
        for argument, dtype, shape, stride, has_digest in operands
    )


def _filled(args: str, floats: Iterator[Any]) -> str:
    head, *parts = args.split(FLOAT)
    return head + "".join(_text(_next(floats)) + part for part in parts)


def _next(rest: Iterator[T]) -> T:
    try:
        return next(rest)
    except StopIteration:
        raise ValueError("a row of operations has too few digests or numbers") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
