"""Rows that a sampler keeps, or does not, are told from other data."""

from __future__ import annotations

import torch
from torch import nn

import anchorlib


def sampled(store, run: str, *, puts_back: bool = True, deals: int = 5, step: float = -2.0) -> None:
    """A model of energies whose negatives go on from those of earlier steps.

    deals: the seed by which samples are chosen. step: by how many times the slope samples move.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    deal = torch.Generator().manual_seed(deals)
    buffer = torch.rand(20, 8, generator=draw) * 2 - 1
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(4):
            chosen = torch.randperm(20, generator=deal)[:12]
            x = buffer[chosen]
            for _ in range(3):
                x = x.detach().requires_grad_()
                model(x).sum().backward()
                slope = x.grad
                x = x + step * slope + 0.05 * torch.randn(x.shape, generator=draw)
            x = x.detach()
            if puts_back:
                buffer[chosen] = x
            real = torch.rand(12, 8, generator=draw)
            optimizer.zero_grad()
            (model(real).mean() - model(x).mean()).backward()
            optimizer.step()


def test_samples_that_are_not_put_back_are_a_fault_of_the_code(tmp_path):
    sampled(tmp_path, "a")
    sampled(tmp_path, "b", puts_back=False)
    for pair in ("ab", "ba"):
        found = anchorlib.compare(*pair, store=tmp_path)
        assert found.verdict == "unexpected", found.sentence
        assert (found.origins[0].place.name, found.origins[0].place.step) == ("input", 1)
        assert "of its rows are those of input at step 0, pass" in found.sentence


def test_samples_that_are_chosen_otherwise_are_other_data(tmp_path):
    sampled(tmp_path, "a")
    sampled(tmp_path, "b", deals=6)
    assert anchorlib.compare("a", "b", store=tmp_path).verdict == "suspect"


def test_samples_that_climb_are_told_by_the_sign_of_their_step(tmp_path):
    sampled(tmp_path, "a")
    sampled(tmp_path, "b", step=2.0)
    sampled(tmp_path, "c", step=-1.0)
    climbs = anchorlib.compare("a", "b", store=tmp_path).sentence
    assert "its gradient of step 0, pass 0 moves it by -2 | 2 times: the other sign" in climbs
    slower = anchorlib.compare("a", "c", store=tmp_path).sentence
    assert "B adds 1 times its gradient of step 0, pass 0" in slower
    assert "sign" not in slower


def dealt(store, run: str, seed: int) -> None:
    """Two epochs of four batches in two passes a step; the second epoch is dealt by `seed`."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    data = torch.rand(16, 8, generator=torch.Generator().manual_seed(1)).split(4)
    second = torch.randperm(4, generator=torch.Generator().manual_seed(seed)).tolist()
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        order = [0, 1, 2, 3, *second]
        for step in range(4):
            optimizer.zero_grad()
            for number in order[2 * step : 2 * step + 2]:
                model(data[number]).square().mean().backward()
            optimizer.step()


def test_batches_of_a_second_epoch_in_another_order_are_other_data(tmp_path):
    dealt(tmp_path, "a", 0)
    for seed in range(1, 7):
        dealt(tmp_path, f"b{seed}", seed)
        found = anchorlib.compare("a", f"b{seed}", store=tmp_path)
        assert found.verdict != "unexpected", found.sentence
