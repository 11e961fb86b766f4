"""Scores of the answers about operations, each with the least that is wanted."""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch

import anchorlib
from anchorlib.operations import Op, RecordMakers, align_ops
from tests.diagnosis.decompositions import DECOMPOSED, exact
from tests.diagnosis.decompositions import traced as compiled
from tests.diagnosis.rewriting import Traced, judged, layers, traced
from tests.diagnosis.scores import Score
from tests.diagnosis.workloads import WORKLOADS

__all__ = ["decomposed", "of_trainings", "scores"]

STEPS = 2
"""So many steps of each training are traced."""


def scores(seeds: Iterable[int], *, large: bool) -> list[Score]:
    """Of each seed a net, the same net again, and one with a formula written otherwise.

    large: whether all of it is the code of one module.
    """
    right, equal, joined, ops = [], [], [], []
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
        ops.append(plain.ops)
    kind = "one large module" if large else "modules"
    return [
        _score(f"{kind}: replacement named, nothing else", right, 0.9 if large else 0.98),
        _score(f"{kind}: equal pairs without a difference", equal, 1.0),
        _score(f"{kind}: records joined to their operation", joined, 0.99),
        *_placed(kind, ops),
    ]


def of_trainings(names: Iterable[str] = tuple(WORKLOADS)) -> list[Score]:
    """What is known of the operations of whole trainings: of all of them, and of each alone."""
    ops = {}
    for name in names:
        with tempfile.TemporaryDirectory() as store, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            workload = WORKLOADS[name][0].but({"steps": STEPS})
            workload.train(partial(_traced, name, store), 0)
            ops[name] = anchorlib.open_run(name, store).ops()
    each = [
        _score(f"{name}: backward in all, with module", _have_modules(_backward(own)), None)
        for name, own in ops.items()
    ]
    return [*_placed("trainings", ops.values()), *each]


def _traced(name: str, store: str, *args: Any, **options: Any) -> Any:
    session = anchorlib.start(name, *args, store=store, **options)
    session.trace(STEPS)
    return session


def _placed(kind: str, runs: Iterable[Sequence[Op]]) -> list[Score]:
    """The shares of operations with module and line.

    Of the backward all operations are counted, and apart from them those whose forward ran in a
    module: no module computes a loss that a training takes of functions.
    """
    every, inside, lines = [], [], []
    for ops in runs:
        every += _have_modules(_backward(ops))
        inside += _have_modules(_of_modules(ops))
        lines += [bool(op.where) for op in ops]
    return [
        _score(f"{kind}: backward of what ran in a module, with module", inside, 0.95),
        _score(f"{kind}: backward in all, with module", every, None),
        _score(f"{kind}: operations of all stages with a line", lines, 1.0),
    ]


def _backward(ops: Iterable[Op]) -> list[Op]:
    return [op for op in ops if op.stage == "backward"]


def _have_modules(ops: Iterable[Op]) -> list[bool]:
    return [bool(op.module) for op in ops]


def _of_modules(ops: Sequence[Op]) -> list[Op]:
    """The backward operations whose forward ran in a module.

    A forward is found by its number. Where it ran in an earlier step, its line tells: whether
    operations without module ran there.
    """
    forwards = [op for op in ops if op.stage == "forward"]
    numbered = {(op.step, op.seq): op for op in forwards if op.seq is not None}
    outside = {op.where for op in forwards if not op.module}
    found = []
    for op in _backward(ops):
        forward = numbered.get((op.step, op.seq))
        if op.module or (forward.module if forward else op.where not in outside):
            found.append(op)
    return found


def decomposed() -> Score:
    """The score over every operation that one of two tables decomposes."""
    plain = compiled()
    right = [exact(name, plain) for name in DECOMPOSED]
    return _score("one backend, two tables of decompositions", right, 1.0)


def _joined(run: Traced) -> list[bool]:
    """For each record that an operation made, whether the operation is found by its digest."""
    makers = RecordMakers(run.ops)
    given = {record.name for record in run.records if record.kind == "pass_grad"} | {"input"}
    found = []
    for one in run.records:
        # What is there before the first operation: the model's input, and first parameters.
        before = one.kind == "value" and one.name in given
        if one.summary is None or one.kind == "delta" or before:
            continue
        at = {"step": one.step, "pass_index": one.pass_index}
        digest = one.summary.digest.hex()
        found.append(makers.maker(one.name, one.kind, digest, one.shape, **at) is not None)
    return found


def _score(what: str, right: Sequence[bool], least: float | None) -> Score:
    return Score(what, sum(right), len(right), least)
