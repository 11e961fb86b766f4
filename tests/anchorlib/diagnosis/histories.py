"""Hand-made runs: which records there are, what they were computed from, and which of them differ.

run = History()
run.forward("a", "b", ops="TanhBackward0")        # b = tanh(a): a value, and later a gradient
compared(run, {"b@value": 1e-3})                  # B's b is a thousandth off, nothing else
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from anchorlib.diagnosis.comparison import Comparison
from anchorlib.diagnosis.investigation import compare_tables
from anchorlib.diagnosis.pairing.join import align
from anchorlib.diagnosis.pairing.tables.table import Table
from anchorlib.record import Edges, Parent, Record
from tests.anchorlib.diagnosis.tables import table
from tests.anchorlib.store.records import record

SIZE = 64


class History:
    """Records in the order in which they are made, and the edges between tensors."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.edges: dict[int, list[Edges]] = {}

    def add(
        self,
        tensor: str,
        step: int = 0,
        pass_index: int = 0,
        *,
        call: int = 0,
        rank: int = 0,
        raw: Any = None,
        **more: Any,
    ) -> None:
        """One record of `name@kind`; its values are drawn by its coordinates."""
        name, _, kind = tensor.rpartition("@")
        key = f"{tensor} {step} {pass_index} {call}"
        if raw is None:
            raw = np.random.default_rng(zlib.crc32(key.encode())).normal(size=SIZE).astype("<f4")
        made = record(
            *(name, step, raw), kind=kind, order=len(self.records), pass_index=pass_index,
            call=call, **more,
        )  # fmt: skip
        self.records.append(replace(made, rank=rank))

    def made_of(self, name: str, *parents: str, **more: Any) -> None:
        """`name` was computed from `parents` by one operation; `w:` marks a parameter.

        A parent may carry its call: `fc#1`.
        """
        options = {"op": f"{name.title()}Backward0", "rank": 0, "call": 0, "phase": "train"}
        options |= more
        found = []
        for parent in parents:
            if parent.startswith("w:"):
                found.append(Parent(parent[2:], None))
                continue
            above, _, call = parent.partition("#")
            found.append(Parent(above, int(call or 0)))
        inputs = tuple(-number for number in range(1, len(found) + 1))
        ops = (options["op"],) if options["op"] else ()
        edges = Edges(
            name, options["phase"], 0, options["call"], (SIZE,), 0, tuple(found), ops,
            (inputs,) * len(ops),
        )  # fmt: skip
        self.edges.setdefault(options["rank"], []).append(edges)

    def chain(self, *names: str, rank: int = 0) -> None:
        """Each name computed from the one before and from a parameter `w_name`."""
        self.edges.setdefault(rank, []).append(
            Edges(names[0], "train", 0, 0, (SIZE,), missing=("it has no graph",))
        )
        for above, name in pairwise(names):
            self.made_of(name, above, f"w:w_{name}", rank=rank)

    def passes(
        self, *names: str, step: int = 0, pass_index: int = 0, rank: int = 0, values: bool = True
    ) -> None:
        """A forward and backward through a chain; `values`: parameters' values are recorded."""
        where = {"step": step, "pass_index": pass_index, "rank": rank}
        parameters = [f"w_{name}" for name in names[1:]]
        for name in parameters if values else ():
            self.add(f"{name}@value", **where)
        for name in names:
            self.add(f"{name}@value", **where)
        for name in reversed(names[1:]):
            self.add(f"{name}@grad", **where)
            self.add(f"w_{name}@pass_grad", **where)

    def optimizer(self, *names: str, step: int = 0, rank: int = 0) -> None:
        """What is made at the optimizer's step, of each parameter of a chain."""
        for kind in ("grad", "updated", "opt.exp_avg"):
            for name in names[1:]:
                self.add(f"w_{name}@{kind}", step, rank=rank)

    def table(self, changes: Mapping[str, Any] | None = None, run: str = "a") -> Table:
        """The run; `changes` as in `changed`."""
        records = [changed(one, changes or {}) for one in self.records]
        edges = {rank: list(told) for rank, told in self.edges.items()}
        return table(records, run=run, edges=edges)


def changed(one: Record, changes: Mapping[str, Any]) -> Record:
    """The record as the other run has it.

    changes: by "name@kind", followed by as many of step, pass, call and rank as are meant
    ("b@grad 0 1"): a relative change, or the array that takes its place.
    """
    where = [one.step, one.pass_index, one.call, one.rank]
    parts = [f"{one.name}@{one.kind}", *map(str, where)]
    for count in range(len(parts), 0, -1):
        change = changes.get(" ".join(parts[:count]))
        if change is not None:
            assert one.raw is not None
            raw = change if isinstance(change, np.ndarray) else off(one.raw, change)
            again = record(one.name, one.step, raw, kind=one.kind, dtype=one.dtype)
            return replace(one, raw=raw, shape=raw.shape, summary=again.summary)
    return one


def over(changes: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`changes`, but `more` for the records that it names, however shortly."""
    kept = {
        key: change
        for key, change in changes.items()
        if not any(f"{key} ".startswith(f"{short} ") for short in more)
    }
    return kept | dict(more)


def off(raw: Any, change: float) -> Any:
    """Every element off by this much, relatively, signs alternating."""
    if raw.dtype.kind != "f":
        return raw ^ 1 if raw.dtype.kind in "iu" else ~raw
    signs = np.where(np.arange(raw.size).reshape(raw.shape) % 2, 1, -1)
    moved = (raw * (1 + change * signs)).astype(raw.dtype)
    return np.where(moved == raw, np.nextafter(raw, np.inf, dtype=raw.dtype), moved)


def compared(
    history: History,
    changes: Mapping[str, Any],
    noise: Sequence[Mapping[str, Any]] = (),
) -> Comparison:
    """A run against the same with changes; `noise` are the changes of the noise runs."""
    a, b = history.table(), history.table(changes, "b")
    runs = [history.table(some, f"noise{number}") for number, some in enumerate(noise)]
    return compare_tables(align(a, b), runs)


def told(found: Comparison) -> list[str]:
    """Class and place of each origin: "rounding fc@grad 0 0"."""
    return [
        f"{o.cls} {o.place.name}@{o.place.kind} {o.place.step} {o.place.pass_index}"
        for o in found.origins
    ]
