"""Scores of the answers about operations, each with the least that is wanted."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from anchorlib.operations import Joined, align_ops
from tests.diagnosis.decompositions import DECOMPOSED, exact
from tests.diagnosis.decompositions import traced as compiled
from tests.diagnosis.rewriting import Traced, judged, layers, traced
from tests.diagnosis.scores import Score

__all__ = ["decomposed", "scores"]


def scores(seeds: Iterable[int], *, large: bool) -> list[Score]:
    """Of each seed a net, the same net again, and one with a formula written otherwise.

    large: whether all of it is the code of one module.
    """
    right, equal, joined, placed = [], [], [], []
    for seed in seeds:
        lines = layers(seed, large=large)
        plain = traced(lines, seed, large=large)
        again = align_ops(plain.ops, traced(lines, seed, large=large).ops)
        found = judged(lines, plain, seed, large=large)
        right.append(found.named and found.alone)
        if not right[-1]:
            print(f"net {seed}, large {large}: {found}", file=sys.stderr, flush=True)
        equal.append(again is not None and not again.every and not again.only_a + again.only_b)
        joined += _joined(plain)
        backward = [op for op in plain.ops if op.stage == "backward"]
        placed += [bool(op.module) for op in backward if op.node not in _LOSS]
    kind = "one large module" if large else "modules"
    return [
        _score(f"{kind}: replacement named, nothing else", right, 0.9 if large else 0.98),
        _score(f"{kind}: equal pairs without a difference", equal, 1.0),
        _score(f"{kind}: records joined to their operation", joined, 0.99),
        _score(f"{kind}: backward operations with module", placed, 0.95),
    ]


def decomposed() -> Score:
    """The score over every operation that one of two tables decomposes."""
    plain = compiled()
    right = [exact(name, plain) for name in DECOMPOSED]
    return _score("one backend, two tables of decompositions", right, 1.0)


_LOSS = frozenset(("MeanBackward0", "PowBackward0"))
"""The nodes of the loss, which no module computes."""


def _joined(run: Traced) -> list[bool]:
    """For each record that an operation made, whether the operation is found by its digest."""
    joined = Joined(run.ops)
    given = {record.name for record in run.records if record.kind == "pass_grad"} | {"input"}
    found = []
    for one in run.records:
        # What is there before the first operation: the model's input, and first parameters.
        before = one.kind == "value" and one.name in given
        if one.summary is None or one.kind == "delta" or before:
            continue
        at = {"step": one.step, "pass_index": one.pass_index}
        digest = one.summary.digest.hex()
        found.append(joined.maker(one.name, one.kind, digest, one.shape, **at) is not None)
    return found


def _score(what: str, right: Sequence[bool], least: float) -> Score:
    return Score(what, sum(right), len(right), least)
