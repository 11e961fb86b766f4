"""The time that each fast implementation saves over the slow one of the same result, in one run.

A pair that no longer pays is to be deleted: its second implementation has to be read, tested and
kept equal to the first.

    python -m benchmarks twins
"""

# ruff: noqa: SLF001  # each way is called by itself

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import anchorlib
from anchorlib.capture.compiled import define
from anchorlib.capture.compiled import kept_operators as operators_module
from anchorlib.capture.eager.observer import Observer
from anchorlib.capture.recording.streams import UNSCALED
from anchorlib.capture.sessions.active import open_session
from anchorlib.capture.sessions.session import Session
from anchorlib.capture.sessions.settings import StartArguments, settings
from anchorlib.sinks import MemorySink
from anchorlib.summary import compiled, figures_of, summarise
from anchorlib.torch_private import register_hook
from benchmarks.figures import Figure, figure
from benchmarks.timing import Ratio, interleaved

CALLS = 2000
ROUNDS = 21


def figures() -> Iterator[Figure]:
    """Measure every pair."""
    torch.set_num_threads(1)
    yield from recording()
    yield from hooks()
    yield operators()
    yield columns()
    yield scans()


def pair(
    what: str,
    fast: Callable[[], object],
    slow: Callable[[], object],
    *,
    calls: int = CALLS,
    unit: str = "µs saved a call",
) -> Figure:
    """What `fast` saves over `slow`, both of `calls` calls; of the thread's own processor time."""
    samples = interleaved({"fast": fast, "slow": slow}, rounds=ROUNDS, warm=2)
    turns = list(zip(samples["fast"], samples["slow"], strict=True))
    saved = Ratio.of([(slow.thread - fast.thread) / calls * 1e6 for fast, slow in turns])
    times = Ratio.of([slow.thread / fast.thread for fast, slow in turns])
    cost = Ratio.of([fast.thread / calls * 1e6 for fast, _ in turns])
    return figure(f"{what}; {times.median:.2f} times, of {cost.median:.2f} µs", saved, unit)


def many(call: Callable[[], object], after: Callable[[], object] = lambda: None) -> Any:
    """CALLS calls, then what is no part of them."""

    def run() -> None:
        for _ in range(CALLS):
            call()
        after()

    return run


@contextmanager
def session() -> Iterator[Session]:
    """A session that records into memory."""
    sink = MemorySink()
    with open_session(settings(StartArguments(run="twins")), sink) as opened:
        yield opened


def recording() -> Iterator[Figure]:
    """The put."""
    x = torch.randn(8, 8)
    with session() as opened:
        observer: Observer = opened._observer
        recorder, queue = observer.recorder, opened._queue
        anchorlib.anchor(x.clone().requires_grad_(), "h").sum().backward()
        plan = opened._anchors._plan("h", None)
        at = observer.clock.now()
        values, _, only, _ = plan.route(at.phase)

        def python() -> object:
            return recorder._place_in_python(only, at, x, UNSCALED)

        def flushed() -> None:
            queue.flush(60)

        yield pair(
            "an 8x8 tensor into the ring: compiled C over Python",
            many(lambda: recorder.quick(only, at, x), flushed),
            many(python, flushed),
        )
        yield pair(
            "the same: Python over torch's own copy",
            many(python, flushed),
            many(lambda: slowly(recorder, values, at, x), flushed),
        )


def slowly(recorder: Any, streams: Any, at: Any, x: torch.Tensor) -> None:
    """Record `x` by the slow path of arrays that are no ordinary ones."""
    with recorder._lock:
        for stream in streams:
            recorder._take(stream, at, x, UNSCALED)
    recorder._queue.fill()


def hooks() -> Iterator[Figure]:
    """A hook on a tensor that an operation made."""
    leaf = torch.randn(8, 8, requires_grad=True)

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        return gradient

    def quick() -> None:
        x = leaf * 1
        register_hook(x, x.grad_fn, hook)

    def public() -> None:
        (leaf * 1).register_hook(hook)

    yield pair("a hook on a tensor: without torch's handle", many(quick), many(public))


def operators() -> Figure:
    """A call of an operator of ours from Python."""
    signature, x = "(Tensor x, str name) -> ()", torch.randn(8, 8)
    direct = define("twin_direct", signature, lambda _x, _name: None)
    with patch.object(operators_module, "wrap_operator_call", lambda *_: None):
        dispatched = define("twin_dispatched", signature, lambda _x, _name: None)
    return pair(
        "an operator in compiled code: past the dispatcher",
        many(lambda: direct(x, "h")),
        many(lambda: dispatched(x, "h")),
    )


def columns() -> Figure:
    """Summaries of many small records."""
    arrays = [np.random.default_rng(n).standard_normal(64).astype(np.float32) for n in range(256)]
    values = [array.tobytes() for array in arrays]
    layout = np.zeros(256, np.uint32)
    with numpy_alone():
        return pair(
            "a summary of 64 float32, numpy: 256 records at once over one by one",
            lambda: figures_of(values, layout, [("float32", 64)]),
            lambda: [summarise(array, "float32") for array in arrays],
            calls=256,
        )


def scans() -> Figure:
    """Summaries of large records."""
    raw = np.random.default_rng(0).standard_normal(1 << 18).astype(np.float32)
    loaded = compiled.Scans()
    fault = loaded.load()
    assert fault is None, fault

    def by(scans: compiled.Scans) -> Callable[[], None]:
        def run() -> None:
            with taking(scans):
                summarise(raw, "float32")

        return run

    return pair(
        "a summary of 262,144 float32: compiled by numba over numpy",
        by(loaded),
        by(compiled.Scans()),
        calls=1,
    )


@contextmanager
def taking(scans: compiled.Scans) -> Iterator[None]:
    """Summarise every record by `scans` inside this context."""
    told: Mapping[str, Any] = {"_ready": scans._ready, "pieces": scans.pieces, "fault": "none"}
    with ExitStack() as stack:
        for name, value in told.items():
            stack.enter_context(patch.object(compiled.SCANS, name, value))
        yield


def numpy_alone() -> Any:
    """Summarise every record by numpy alone inside this context; nothing is compiled."""
    return taking(compiled.Scans())
