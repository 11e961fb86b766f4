"""Functions with anchors, run eagerly and compiled, and what was recorded of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from anchorlib.capture.sessions.session import Session
from tests.recording import Recording, recording

TRACING = ["eager", "aot_eager"]
"""Backends that compile no kernels: dynamo alone, and with AOT autograd."""

BACKENDS = [*TRACING, pytest.param("inductor", marks=pytest.mark.long)]
AOT = BACKENDS[1:]
"""Where a law is about each backend, Inductor's case of it is long: its compiler takes seconds.

What `make test` asks of Inductor has tests of its own: values, gradients and situations
(`together`), modes, dynamic shapes, trainings, the order of calls, rounding.
"""

# torch itself does what it warns of: when inductor is loaded, and when dynamo traces a custom
# Function or an input that is no leaf.
QUIET = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in (
        "`torch.jit.script",
        "<class 'torch.autograd.function.Function'> should not be instantiated",
        "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed",
        "Torchinductor does not support code generation for complex operators",
    )
]

X = torch.linspace(-1, 1, 12).reshape(4, 3)
W = torch.linspace(-2, 2, 15).reshape(3, 5)

Act = Callable[[Callable[..., torch.Tensor], Session], None]


class Place(NamedTuple):
    """Where a record stands."""

    name: str
    kind: str
    mode: str
    phase: str
    step: int
    pass_index: int
    call: int
    count: int


def weight() -> torch.Tensor:
    """A leaf that no other test has hooked."""
    return W.clone().requires_grad_()


def observed(run: Recording) -> dict[Place, list[np.ndarray]]:
    """All that a closed session recorded: the values at each place, in order."""
    found: dict[Place, list[np.ndarray]] = {}
    for r in run.sink.records:
        c = r.coordinates
        where = (c.phase, c.step, c.pass_index, c.call, r.count)
        found.setdefault(Place(r.name, r.kind, r.mode, *where), []).append(
            r.array if r.raw is not None else np.array([r.summary.sum, r.summary.l2])
        )
    return found


def places(run: Recording) -> list[tuple[str, str, int, int, int]]:
    """`name, kind, step, pass, call` of all records, in order."""
    return [(p.name, p.kind, p.step, p.pass_index, p.call) for p in observed(run)]


def train(function: Callable[..., torch.Tensor], session: Session) -> None:
    """Two steps of forward and backward."""
    w = weight()
    for step in range(2):
        loss = function(X * (step + 1), w)
        if loss.requires_grad:
            loss.backward()
        session.step()


def record(function: Callable[..., Any], act: Act = train, **options: Any) -> Recording:
    """What `act` makes of `function` in a session of its own."""
    with recording(**options) as run:
        act(function, run.session)
    return run


def assert_same(run: Recording, truth: Recording) -> None:
    """Both hold records at the same places, of the same values."""
    got, wanted = observed(run), observed(truth)
    assert sorted(got) == sorted(wanted)
    for place, arrays in wanted.items():
        for a, b in zip(got[place], arrays, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=str(place))
    assert run.session.counters.skipped == truth.session.counters.skipped


def assert_compiled_as_eager(
    function: Callable[..., Any], backend: str, act: Act = train, **options: Any
) -> Recording:
    """Compiling `function` changes nothing of what is recorded."""
    truth = record(function, act)
    assert truth.sink.records
    compiled = torch.compile(function, fullgraph=True, backend=backend, **options)
    run = record(compiled, act)
    assert_same(run, truth)
    return run


def together(functions: Sequence[Callable[..., torch.Tensor]]) -> Callable[..., torch.Tensor]:
    """One function that calls all of them: each graph, however small, takes Inductor two seconds.

    What one of them records stands beside what the others do, each at its call. Of which function
    a record is, its name tells; dynamo and AOT autograd are asked about each one by itself.
    """

    def all_of_them(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.stack([function(x, w) for function in functions]).sum()

    return all_of_them


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What anchorlib logged."""
    return [r.getMessage() for r in caplog.records if r.name == "anchorlib"]
