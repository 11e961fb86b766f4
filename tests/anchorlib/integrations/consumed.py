"""The oracle: the gradients that optimizers consumed, seen without anchorlib."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


@contextmanager
def gradients_consumed(model: nn.Module) -> Iterator[dict[str, list[np.ndarray]]]:
    """For each parameter, its gradient at each step of the optimizer that holds it, in order."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    seen: dict[str, list[np.ndarray]] = {name: [] for name in names.values()}

    def after(optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    seen[names[id(parameter)]].append(parameter.grad.detach().clone().numpy())

    handle = register_optimizer_step_post_hook(after)
    try:
        yield seen
    finally:
        handle.remove()


def assert_recorded(run, seen, names=None):
    """The run holds, step by step, exactly the gradients that were consumed."""
    for name in names or seen:
        series = run.series(name, "grad")
        assert series.columns["step"].tolist() == list(range(len(seen[name])))
        assert set(series.columns["pass_index"].tolist()) == {0}
        for got, expected in zip(series.values(), seen[name], strict=True):
            np.testing.assert_array_equal(got, expected)
    assert any(np.any(gradients) for gradients in seen.values())


def where(run, name, kind="value", **which):
    """(phase, step, pass, call) of each record, in order of recording."""
    series = run.series(name, kind, **which)
    return [(r.phase, r.step, r.pass_index, r.call) for r in series.records()]


def assert_same_bits(a: nn.Module, b: nn.Module) -> None:
    """Two models hold the same parameters, bit for bit."""
    for (name, one), (_, other) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        assert torch.equal(one.detach(), other.detach()), name
