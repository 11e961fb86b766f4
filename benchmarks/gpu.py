"""The cost of observing for a training on a GPU: `make gpu` on a machine that has a GPU.

The steps are those of a transformer that keeps its GPU busy, in bursts that the queue has room for:
what is measured is what the training feels, not how fast a recorder summarises. Each arm has a
model of its own with the same weights; arms take turns, and are compared within one run.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import anchorlib
from anchorlib.capture.sessions.active import active_session
from benchmarks.figures import Figure, figure
from benchmarks.timing import Ratio

__all__ = ["BIG", "Size", "figures"]


@dataclass(frozen=True, slots=True)
class Size:
    """How large everything is. queue: bytes. burst: steps in a row, between which all is stored."""

    width: int
    layers: int
    heads: int
    tokens: tuple[int, int]
    dtype: torch.dtype
    queue: int
    burst: int
    rounds: int
    device: str = "cuda"


BIG = Size(4096, 2, 32, (8, 1024), torch.bfloat16, 14 << 30, 3, 5)
_ANCHORS, _EACH = 20, 20  # anchors in a step, and steps in one measurement of one


def figures(size: Size = BIG) -> Iterator[Figure]:
    """Every line of the table."""
    if size.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("benchmarks: there is no GPU of CUDA here")
    with tempfile.TemporaryDirectory() as store:
        yield from _calls(size, store)
    with tempfile.TemporaryDirectory() as store:
        yield from _steps(size, store)


# -- one anchor


def _calls(size: Size, store: str) -> Iterator[Figure]:
    with anchorlib.start("calls", store=store, queue_bytes=2 << 30, mode=anchorlib.Summary) as one:
        yield _lanes(size)
        for name, elements in (("8x8", 64), ("1 MiB", 1 << 18)):
            x = torch.ones(elements, device=size.device)
            turns = [_microseconds(one, x, waits=waits) for waits in (False, True) * size.rounds]
            yield figure(f"anchor of {name} on the GPU, on the training thread", Ratio.of(
                turns[::2]), "µs")  # fmt: skip
            yield figure(f"the same where each copy is waited for ({name})", Ratio.of(
                turns[1::2]), "µs")  # fmt: skip
        yield figure(
            "values to the ring", Ratio.of([_gigabytes(one, size) for _ in range(5)]), "GB/s"
        )


def _lanes(size: Size) -> Figure:
    """Whether the GPU can copy into the ring, and how long it took to find that out."""
    since = time.perf_counter()
    anchorlib.anchor(torch.zeros(1, device=size.device), "first", grad=False)
    _join_lanes()
    took = time.perf_counter() - since
    lanes = _copier()._lanes.values()  # noqa: SLF001
    assert size.device == "cpu" or all(lane is not None for lane in lanes), "see the log"
    return figure(
        "until the GPU reaches a ring of 2 GiB, beside the training", Ratio.of([took]), "s"
    )


def _copier() -> Any:
    session = active_session()
    assert session is not None
    return session._queue._copier  # noqa: SLF001


def _join_lanes() -> None:
    for thread in threading.enumerate():
        if thread.name == "anchorlib-cuda":
            thread.join(120)


def _microseconds(session: anchorlib.Session, x: torch.Tensor, *, waits: bool) -> float:
    names = [f"x{number}" for number in range(_ANCHORS)]
    took = 0.0
    with _Waiting(waits):
        for step in range(2 + _EACH):  # what a step consists of is learnt in the first ones
            _wait(x.device)
            since = time.perf_counter()
            for name in names:
                anchorlib.anchor(x, name, grad=False)
            took += (time.perf_counter() - since) * (step > 1)
            session.step()
    session.flush()
    return took / (_EACH * _ANCHORS) * 1e6


def _gigabytes(session: anchorlib.Session, size: Size) -> float:
    """How fast values come: of 512 MiB, once all slots have their last word."""
    x = torch.ones(1 << 22, device=size.device)
    _wait(x.device)
    since = time.perf_counter()
    for _ in range(32):
        anchorlib.anchor(x, "much", grad=False)
    _wait(x.device)  # of all streams
    took = time.perf_counter() - since
    session.flush()
    return 32 * x.nbytes / took / 1e9


class _Waiting:
    """While it is entered, each copy is waited for, as where a GPU does not reach the ring."""

    def __init__(self, waits: bool) -> None:  # noqa: FBT001
        self._waits = waits
        self._lanes: dict[Any, Any] = {}

    def __enter__(self) -> None:
        if self._waits:
            lanes = _copier()._lanes  # noqa: SLF001
            self._lanes = dict(lanes)
            lanes.update(dict.fromkeys(lanes))

    def __exit__(self, *_: object) -> None:
        if self._waits:
            _copier()._lanes.update(self._lanes)  # noqa: SLF001


# -- steps


def _steps(size: Size, store: str) -> Iterator[Figure]:
    plain, watched, weights = (_Training(size) for _ in range(3))
    for one in (plain, watched, weights):
        one.run(2)  # memory and kernels are found
    peak = _peak(size, plain)
    times: dict[str, list[float]] = {name: [] for name in ("all", "weights", "waiting")}
    with anchorlib.start(
        "steps", store=store, queue_bytes=size.queue, mode=anchorlib.Summary, on_full="block"
    ) as session:
        session.watch(watched.model, tensors="*@grad", optimizer=watched.optimizer)
        session.watch(
            weights.model,
            tensors="re:.*(weight|bias)@grad",
            optimizer=weights.optimizer,
            prefix="weights",
        )
        watched.run(1)
        _join_lanes()
        session.flush()
        arms: dict[str, Callable[[], float]] = {
            "all": watched.burst,
            "weights": weights.burst,
            "waiting": watched.waiting_burst,
        }
        for _ in range(size.rounds):
            for name, arm in arms.items():
                times[name].append(arm() / plain.burst())
                session.flush()
        records, nbytes = session.counters.records, watched.grad_bytes()
        yield figure("GPU memory, peak, `*@grad` / unobserved", Ratio.of(
            [_peak(size, watched) / peak]))  # fmt: skip
        session.flush()
        blocked = session._queue.records.blocked_seconds  # noqa: SLF001
    yield figure("step with `*@grad` / unobserved", Ratio.of(times["all"]), at_most=1.03)
    yield figure("step with parameters' gradients / unobserved", Ratio.of(times["weights"]))
    yield figure("step with `*@grad`, each copy waited for", Ratio.of(times["waiting"]))
    step = statistics.median(plain.burst() for _ in range(size.rounds)) / size.burst
    yield figure("the unobserved step", Ratio.of([step * 1e3]), "ms")
    yield figure("parameters' gradients in it", Ratio.of([nbytes / 2**20]), "MiB")
    yield figure("records in all", Ratio.of([float(records)]), "records")
    yield figure("time that the training waited for room", Ratio.of([blocked]), "s")


class _Training:
    """A transformer and what trains it."""

    def __init__(self, size: Size) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(
            size.width, size.heads, 4 * size.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self._size = size
        self.model = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False).to(
            size.device, size.dtype
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-6)
        self._x = torch.randn(*size.tokens, size.width, device=size.device, dtype=size.dtype)

    def run(self, steps: int) -> None:
        """Train."""
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(self._x).square().mean().backward()
            self.optimizer.step()

    def burst(self) -> float:
        """Seconds that some steps in a row take in the training's own stream."""
        _wait(self._x.device)
        since = time.perf_counter()
        self.run(self._size.burst)
        if self._x.is_cuda:
            torch.cuda.current_stream().synchronize()
        return time.perf_counter() - since

    def waiting_burst(self) -> float:
        """Seconds that some steps in a row take where the thread waits for each copy."""
        with _Waiting(waits=True):
            return self.burst()

    def grad_bytes(self) -> int:
        """The bytes of all gradients of the parameters."""
        return sum(p.grad.nbytes for p in self.model.parameters() if p.grad is not None)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak(size: Size, training: _Training) -> float:
    if size.device != "cuda":
        return 1.0
    torch.cuda.reset_peak_memory_stats()
    training.burst()
    return float(torch.cuda.max_memory_allocated())
