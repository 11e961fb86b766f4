"""Gradients that a program writes itself, as a server does that follows its clients."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.once import Once


@dataclass(frozen=True)
class Training:
    """Three clients learn by turns; the server's gradient leads it to their mean.

    mean: how the mean is computed, "at once" or "one by one". share: of the first client in it,
    where equal shares are 1.
    """

    mean: str = "at once"
    share: float = 1.0


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    server = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 4))
    clients = [deepcopy(server) for _ in range(3)]
    both = nn.ModuleDict({"server": server, "clients": nn.ModuleList(clients)})
    optimizers = [torch.optim.SGD(one.parameters(), lr=1e-3) for one in (*clients, server)]
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(both, tensors="*", optimizer=optimizers)
        for _ in range(2):
            for number, client in enumerate(clients):
                client.load_state_dict(server.state_dict())
                optimizers[number].zero_grad()
                x = torch.randn(16, 8, generator=draw) + number
                loss = functional.mse_loss(client(x), x[:, :4])
                anchorlib.anchor(loss, f"loss{number}").backward()
                optimizers[number].step()
            with torch.no_grad():
                for own, *of_clients in zip(
                    server.parameters(), *(one.parameters() for one in clients), strict=True
                ):
                    first, *rest = of_clients
                    own.grad = own - mean(how, [how.share * first, *rest])
            optimizers[-1].step()


def mean(how: Training, parts: list[torch.Tensor]) -> torch.Tensor:
    if how.mean == "at once":
        return torch.stack(parts).mean(0)
    found = parts[0] / 3
    for one in parts[1:]:
        found = found + one / 3
    return found


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


def test_differences_of_parameters_round_as_the_parameters_do(once):
    found = anchorlib.compare(once(Training()), once(Training("one by one")))
    assert found.verdict == "suspect", found
    first = found.origins[0]
    assert first.place.name.startswith("server.")
    assert first.place.kind == "grad"
    assert first.measure.error_eps > 32  # relative to itself the error would be none of rounding


@pytest.mark.parametrize("mean", ["at once", "one by one"])
def test_another_share_is_a_fault(mean, once):
    found = anchorlib.compare(once(Training()), once(Training(mean, 1.0001)))
    assert found.verdict == "unexpected", found
    assert found.origins[0].place.name.startswith("server.")
