"""What tracing the operations of a step costs the training thread.

A transformer of width 256, Adam, one thread: traced steps against steps of the same session that
are not traced, with digests of all that operations take and make, and with none.

    python -m benchmarks tracing
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator

import torch
from torch import nn

import anchorlib
from benchmarks.figures import Figure, figure
from benchmarks.timing import Ratio, interleaved, ratio

STEPS = 3  # in one turn
LARGE, SMALL = 256, 32


def figures() -> Iterator[Figure]:
    """All of them."""
    torch.set_num_threads(1)
    yield from of_width(LARGE, "transformer, width 256: a traced step / the same step", 2.5)
    yield from of_width(SMALL, "", None)


def of_width(width: int, what: str, bound: float | None) -> Iterator[Figure]:
    """A step's ratio where `what` names it; of small tensors what one operation costs."""
    step, model, optimizer = training(width)
    with (
        tempfile.TemporaryDirectory() as folder,
        anchorlib.start("tracing", store=folder) as session,
    ):
        session.watch(model, tensors=["2"], optimizer=optimizer)

        def turn(digests: str | None) -> Callable[[], None]:
            def run() -> None:
                if digests is not None:
                    session.trace(STEPS, digests=digests)  # type: ignore[arg-type]
                for _ in range(STEPS):
                    step()

            return run

        step()
        arms = {"plain": turn(None), "traced": turn("both"), "without": turn("none")}
        samples = interleaved(arms, rounds=7)
        session.flush()
        ops = anchorlib.open_run("tracing", folder).ops()
        count = sum(op.step == ops[-1].step for op in ops)
    if what:
        yield figure(what, ratio(samples, "traced", "plain", clock="thread"), at_most=bound)
        yield figure(f"{what}, no digests", ratio(samples, "without", "plain", clock="thread"))
        return
    pairs = zip(samples["traced"], samples["plain"], strict=True)
    each = Ratio.of([(a.thread - b.thread) / (STEPS * count) * 1e6 for a, b in pairs])
    why = "torch hands each operation to Python and back, and three digests are taken of it"
    yield figure("one operation of small tensors, both digests", each, "µs", at_most=40, why=why)


def training(width: int) -> tuple[Callable[[], None], nn.Module, torch.optim.Optimizer]:
    """A step of two encoder layers, and what it trains."""
    torch.manual_seed(0)

    def layer() -> nn.Module:
        return nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)

    model = nn.Sequential(layer(), layer(), nn.Linear(width, 10))
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(16, 64, width)

    def step() -> None:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

    return step, model, optimizer
