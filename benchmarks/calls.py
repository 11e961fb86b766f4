"""The cost of one `anchor` call for the training thread.

Compares an inactive anchor with an empty Python function; an active one of an 8x8 tensor, value and
gradient, with the same step without anchors (embedded, and streaming to a collector in another
process); the same in compiled code; and large tensors with one memcpy into warm memory.

    python -m benchmarks calls
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

import anchorlib
from benchmarks.figures import Figure, figure
from benchmarks.timing import Ratio, Samples, interleaved, ratio

ANCHORS = 20  # in one step
STEPS = 100
CALLS = 100_000


def figures() -> Iterator[Figure]:
    """Measure every figure of this module."""
    torch.set_num_threads(1)
    yield inactive()
    with tempfile.TemporaryDirectory() as folder:
        for where, bound in (("embedded", 8.0), ("remote", 10.0)):
            yield active(Path(folder), where, bound)
        yield compiled(Path(folder))
        for megabytes, bound in ((4, 1.3), (64, 1.2)):
            yield large(Path(folder), megabytes, bound)


def inactive() -> Figure:
    """An anchor without a session against an empty Python function, both without their loop."""
    x = torch.zeros(8, 8)

    def loop() -> None:
        for _ in range(CALLS):
            pass

    def empty(call: Callable[..., object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(CALLS):
                call(x, "h")

        return run

    def nothing(x: torch.Tensor, _name: str) -> torch.Tensor:
        return x

    arms = {"loop": loop, "empty": empty(nothing), "anchor": empty(anchorlib.anchor)}
    samples = interleaved(arms, rounds=15)
    triples = zip(*(samples[name] for name in ("anchor", "empty", "loop")), strict=True)
    ratios = [(a.thread - c.thread) / (b.thread - c.thread) for a, b, c in triples]
    return figure("inactive anchor / empty function", Ratio.of(ratios), at_most=2)


def chain(*, named: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """A step of tiny operations, whose results are anchored or not."""
    names = [f"h{number}" for number in range(ANCHORS)]

    def forward(x: torch.Tensor) -> torch.Tensor:
        for name in names:
            x = torch.tanh(x)
            if named:
                anchorlib.anchor(x, name)
        return x

    return forward


def per_anchor(samples: Samples) -> Ratio:
    """Microseconds of the training thread for one anchor."""
    pairs = zip(samples["anchored"], samples["plain"], strict=True)
    return Ratio.of([(a.thread - b.thread) / (STEPS * ANCHORS) * 1e6 for a, b in pairs])


def stepping(
    forward: Callable[[torch.Tensor], torch.Tensor], session: anchorlib.Session | None
) -> Callable[[], None]:
    """Many forward and backward passes."""
    x = torch.zeros(8, 8, requires_grad=True)

    def run() -> None:
        for _ in range(STEPS):
            forward(x).sum().backward()
            if session is not None:
                session.step()

    return run


def active(folder: Path, where: str, bound: float) -> Figure:
    """Value and gradient of an 8x8 tensor, eager."""
    what = f"active anchor, 8x8, value and gradient, {where}"
    with (
        collector(folder / where, where) as store,
        anchorlib.start("calls", store=store, first_step=0) as session,
    ):
        arms = {"plain": stepping(chain(named=False), None)}
        arms["anchored"] = stepping(chain(named=True), session)
        samples = interleaved(arms, rounds=9)
    why = "what must be asked of a tensor before its bytes may be taken, and the gradient's hook"
    return figure(what, per_anchor(samples), "µs", at_most=bound, why=why)


def compiled(folder: Path) -> Figure:
    """Value and gradient of an 8x8 tensor, inside torch.compile."""
    plain = torch.compile(chain(named=False), fullgraph=True)
    stepping(plain, None)()
    with anchorlib.start("compiled", store=folder / "compiled") as session:
        named = torch.compile(chain(named=True), fullgraph=True)
        arms = {"plain": stepping(plain, None), "anchored": stepping(named, session)}
        samples = interleaved(arms, rounds=9, warm=2)
    return figure("compiled anchor, value and gradient", per_anchor(samples), "µs", at_most=25)


def large(folder: Path, megabytes: int, bound: float) -> Figure:
    """`anchor` of one large tensor against one copy into memory that is warm."""
    x = torch.rand(megabytes << 18)
    source, kept = x.numpy(), np.empty(megabytes << 18, np.float32)
    rounds = 20
    with anchorlib.start(f"large{megabytes}", store=folder / "large") as session:

        def anchored() -> None:
            anchorlib.anchor(x, "x", grad=False)

        def copied() -> None:
            np.copyto(kept, source)

        def settle() -> None:  # not timed: what waits is written between the rounds
            session.flush()

        samples: dict[str, list[object]] = {"anchored": [], "copied": []}
        for _ in range(rounds):
            settle()
            for name, taken in interleaved(
                {"anchored": anchored, "copied": copied}, rounds=1, warm=0
            ).items():
                samples[name] += taken
    found = ratio(samples, "anchored", "copied", clock="thread")  # type: ignore[arg-type]
    why = "the buffer was last read by another core, that of the memcpy by nobody"
    return figure(f"anchor of {megabytes} MB / one warm memcpy", found, at_most=bound, why=why)


@contextmanager
def collector(folder: Path, where: str) -> Iterator[str]:
    """A store to record into; with "remote" the address of a collector, in its own process."""
    if where == "embedded":
        yield str(folder)
        return
    command = [sys.executable, "-m", "anchor_cli", "serve", "--store", str(folder), "--bind"]
    process = subprocess.Popen([*command, "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield "grpc://" + line.split(" on ")[1].split(" into ")[0]
    finally:
        process.terminate()
        process.wait()
