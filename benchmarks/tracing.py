"""The cost of tracing a step's operations for the training thread.

A transformer of width 256, Adam, one thread: traced steps against steps of the same session that
are not traced, with digests of all that operations take and make, with none, and with the values of
the operations of one module kept whole.

Compiled code is traced from its first step on, for its graphs are read while they are compiled;
untraced steps of the same code stand beside it. What an operation costs stands beside what
torch's own `DebugMode` takes for it.

    python -m benchmarks tracing
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn
from torch.utils._debug_mode import DebugMode

import anchorlib
from benchmarks.figures import Figure, figure
from benchmarks.timing import Ratio, Sample, Samples, interleaved, ratio, timed

STEPS = 3  # in one turn
LARGE, SMALL = 256, 32
KEPT = "0.linear1"  # the larger half of a layer's multilayer perceptron
ROUNDS = 3  # of compiled code, which is compiled again in each


def figures() -> Iterator[Figure]:
    """Measure every figure of this module."""
    torch.set_num_threads(1)
    yield from of_width(LARGE, "transformer, width 256: a traced step / the same step", 2.5)
    yield from of_width(SMALL, "", None)
    for backend in ("aot_eager", "inductor"):
        yield of_compiled(backend)


def of_width(width: int, what: str, bound: float | None) -> Iterator[Figure]:
    """A step's ratio where `what` names it; of small tensors what one operation costs."""
    step, model, optimizer = training(width)
    with (
        tempfile.TemporaryDirectory() as folder,
        anchorlib.start("tracing", store=folder) as session,
    ):
        session.watch(model, tensors=["2"], optimizer=optimizer)

        def turn(digests: str | None, values: Sequence[str] = ()) -> Callable[[], None]:
            def run() -> None:
                if digests is not None:
                    session.trace(STEPS, digests=digests, values=values)  # type: ignore[arg-type]
                for _ in range(STEPS):
                    step()

            return run

        step()
        arms = {"plain": turn(None), "traced": turn("both"), "without": turn("none")}
        if what:
            arms["kept"] = turn("both", [KEPT])
        if not what:
            arms["debug"] = lambda: in_debug_mode(step)
        samples = interleaved(arms, rounds=7)
        session.flush()
        ops = anchorlib.open_run("tracing", folder).ops()
        count = sum(op.step == ops[-1].step for op in ops)
    if what:
        yield figure(what, ratio(samples, "traced", "plain", clock="thread"), at_most=bound)
        yield figure(f"{what}, no digests", ratio(samples, "without", "plain", clock="thread"))
        told = f"a traced step that keeps the values of `{KEPT}` / a traced step"
        yield figure(told, ratio(samples, "kept", "traced", clock="thread"))
        return
    yield from of_operation(samples, STEPS * count)


def of_operation(samples: Samples, count: int) -> Iterator[Figure]:
    """The cost of one operation, of which a turn traced `count`; and beside what torch's own costs.

    The microseconds are those of a machine on which `DebugMode` takes 275 to 298: the ratio tells
    on any other machine what 40 of them are there.
    """
    arms = (samples[arm] for arm in ("traced", "debug", "plain"))
    costs = [(a.thread - c.thread, b.thread - c.thread) for a, b, c in zip(*arms, strict=True)]
    each = Ratio.of([ours / count * 1e6 for ours, _ in costs])
    beside = Ratio.of([ours / torchs for ours, torchs in costs])
    why = "torch hands each operation to Python and back, and three digests are taken of it"
    what = "one operation of small tensors, both digests"
    yield figure(what, each, "µs", at_most=40, why=why)
    yield figure(f"{what} / torch's `DebugMode` with hashes", beside, at_most=40 / 275)


def in_debug_mode(step: Callable[[], None]) -> None:
    """The steps of a turn under torch's own trace, told to note what ours does."""
    hashes = DebugMode.log_tensor_hashes(hash_fn="hash_tensor", hash_inputs=True)
    with DebugMode(record_nn_module=True, record_stack_trace=True, record_ids=True), hashes:
        steps(step)


def of_compiled(backend: str) -> Figure:
    """A traced step's ratio where a backend runs the model."""
    step, model, optimizer = training(LARGE, backend)
    with (
        tempfile.TemporaryDirectory() as folder,
        anchorlib.start("tracing", store=folder) as session,
    ):
        session.watch(model, tensors=["2"], optimizer=optimizer)
        samples: dict[str, list[Sample]] = {"traced": [], "plain": []}
        # A second trace would not read what the first one saw compiled: each round begins anew.
        for _ in range(ROUNDS):
            torch.compiler.reset()
            session.trace(1 + 2 * STEPS)
            step()
            samples["traced"].append(timed(lambda: steps(step)))
            steps(step)
            samples["plain"].append(timed(lambda: steps(step)))
        session.flush()
    what = f"the same, compiled by {backend}"
    return figure(what, ratio(samples, "traced", "plain", clock="thread"), at_most=2.5)


def steps(step: Callable[[], None]) -> None:
    """Some steps of a training."""
    for _ in range(STEPS):
        step()


def training(
    width: int, backend: str = ""
) -> tuple[Callable[[], None], nn.Module, torch.optim.Optimizer]:
    """A step of two encoder layers, and what it trains. backend: of torch.compile, if any."""
    torch.manual_seed(0)

    def layer() -> nn.Module:
        return nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)

    model = nn.Sequential(layer(), layer(), nn.Linear(width, 10))
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(16, 64, width)
    called = torch.compile(model, backend=backend) if backend else model

    def step() -> None:
        optimizer.zero_grad()
        called(x).pow(2).mean().backward()
        optimizer.step()

    return step, model, optimizer
