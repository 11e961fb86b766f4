"""Faults in runs that hold what a watched model records by default: no inputs, no parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from anchorlib.diagnosis.comparison import Comparison
from anchorlib.diagnosis.investigation import compare_tables
from anchorlib.diagnosis.pairing import table_of
from anchorlib.diagnosis.pairing.join import align

Tensor = torch.Tensor


class Attention(nn.Module):
    def __init__(self, *, causal: bool = True, low: bool = False) -> None:
        super().__init__()
        self.causal, self.low = causal, low
        self.embed, self.qkv = nn.Embedding(64, 16), nn.Linear(16, 48, bias=False)
        self.proj, self.head = nn.Linear(16, 16, bias=False), nn.Linear(16, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = (part.unsqueeze(1) for part in self.qkv(self.embed(tokens)).split(16, dim=2))
        h = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal).squeeze(1)
        h = self.proj(h).tanh()
        return self.head(h.half().float() if self.low else h)


def compared(
    store: Any,
    *,
    evaluated: bool = False,
    modes: tuple[bool, bool] = (False, False),
    betas: tuple[float, float] = (0.9, 0.999),
    **changed: bool,
) -> Comparison:
    """Two runs; the second has the changes and betas. modes: `training` of each when evaluated."""
    runs = (("a", modes[0], (0.9, 0.999), {}), ("b", modes[1], betas, changed))
    for run, training, moments, changes in runs:
        torch.manual_seed(0)
        model = Attention(**changes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, betas=moments)
        tokens = torch.rand(4, 64, generator=torch.Generator().manual_seed(1)).argsort(1)
        with anchorlib.start(run, store=store, recorder="thread") as session:
            session.watch(model, optimizer=optimizer)
            if evaluated:
                with torch.no_grad():
                    model.train(training)(tokens)
                model.train()
            for _ in range(3):
                optimizer.zero_grad()
                functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
                optimizer.step()
    return anchorlib.compare("a", "b", store=store)


@pytest.mark.slow
@pytest.mark.parametrize("evaluated", [False, True])
def test_a_mask_that_is_gone_is_a_fault_though_nothing_says_what_the_model_was_given(
    tmp_path, evaluated
):
    """An evaluation comes first in many programs; its operations are those of the training."""
    found = compared(tmp_path, causal=False, evaluated=evaluated)
    assert found.verdict == "unexpected"
    (origin,) = found.origins
    phase = "eval" if evaluated else "train"
    assert (origin.place.name, origin.place.phase) == ("proj", phase)
    assert "is_causal True | False" in found.sentence


@pytest.fixture
def high_precision():
    """What programs for GPUs ask of matrix products, wherever they run."""
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("high_precision")
def test_a_cast_to_half_is_a_fault_on_a_cpu_though_products_on_gpus_may_be_less_precise(tmp_path):
    found = compared(tmp_path, low=True)
    assert (found.verdict, found.origins[0].cls) == ("unexpected", "not_rounding")
    assert found.origins[0].place.name == "head"


@pytest.mark.slow
@pytest.mark.usefixtures("high_precision")
@pytest.mark.parametrize(("devices", "cls"), [("cpu", "not_rounding"), ("cpu|cuda", "rounding")])
def test_a_gpu_of_the_machine_says_nothing_of_tensors_that_lie_elsewhere(tmp_path, devices, cls):
    compared(tmp_path, low=True)
    runs = [table_of(anchorlib.open_run(run, tmp_path)) for run in "ab"]
    told = {"torch.device": "NVIDIA H200", "tensors.device": devices}
    for table in runs:
        table.header[0].update(told)
    found = compare_tables(align(*runs))
    assert found.origins[0].cls == cls, found


@pytest.mark.slow
def test_other_betas_are_named_where_an_update_first_shows_in_what_is_computed_from_it(tmp_path):
    found = compared(tmp_path, betas=(0.8, 0.999))
    assert (found.verdict, found.first.place.step) == ("unexpected", 2)
    assert "AdamW betas [0.9, 0.999] | [0.8, 0.999]" in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize(("modes", "said"), [((False, True), True), ((True, True), False)])
def test_a_missing_eval_is_asked_about(tmp_path, modes, said):
    found = compared(tmp_path, evaluated=True, modes=modes)
    assert found.verdict == "identical"
    assert any("b looks on in training mode" in note for note in found.notes) == said


def test_a_module_that_took_anothers_place_explains_what_a_relu_cannot_round(tmp_path):
    for run, activation in (("a", nn.ReLU()), ("b", nn.GELU())):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 16), activation)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model)
            model(torch.ones(4, 16)).sum().backward()
    sentence = anchorlib.compare("a", "b", store=tmp_path).sentence
    assert "B has Gelu in place of Relu" in sentence
    assert "cannot round" not in sentence


class Two(nn.Module):
    """Two layers; the second one's input is multiplied by a number in some passes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.factor = nn.Linear(8, 16), nn.Linear(16, 4), 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh() * self.factor)


def accumulated(store: Any, run: str, factor: float, moves: float) -> None:
    """Steps of two passes, the second with the factor; parameters may move between, as of SAM."""
    torch.manual_seed(0)
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, optimizer=optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            for pass_index, model.factor in enumerate((1.0, factor)):
                model(torch.randn(16, 8, generator=draw)).square().mean().backward()
                with torch.no_grad():
                    for one in model.parameters() if not pass_index else ():
                        one.add_(one.grad, alpha=moves)
            optimizer.step()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "moves", "verdict"),
    [(1.5, (0.0, 0.0), "unexpected"), (1.0, (0.1, 0.1 + 1e-6), "suspect")],
    ids=["a factor", "parameters that move a little otherwise"],
)
def test_a_fault_of_a_second_pass_is_no_start_of_what_was_recorded(
    tmp_path, factor, moves, verdict
):
    for run, own, alpha in zip("ab", (1.0, factor), moves, strict=True):
        accumulated(tmp_path, run, own, alpha)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.first is not None
    assert (found.first.place.step, found.first.place.pass_index) == (0, 1)
    assert found.verdict == verdict, found.sentence
    cls = "not_rounding" if verdict == "unexpected" else "window_start"
    assert found.origins[0].cls == cls, found.sentence


def test_a_second_pass_behind_another_optimizers_step_may_have_moved_by_what_nobody_saw(tmp_path):
    for run, lr in (("a", 0.1), ("b", 0.2)):
        torch.manual_seed(0)
        model = Two()
        halves = [torch.optim.SGD(part.parameters(), lr) for part in (model.first, model.second)]
        draw = torch.Generator().manual_seed(1)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, optimizer=halves)
            for _ in range(2):
                for optimizer in halves:
                    optimizer.zero_grad()
                    model(torch.randn(16, 8, generator=draw)).square().mean().backward()
                    optimizer.step()
                session.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.origins[0].cls == "window_start", found.sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "fault"),
    [({"betas": (0.9, 0.99)}, True), ({"eps": 1e-3}, True), ({"fused": True}, False)],
    ids=["betas", "eps", "fused"],
)
def test_an_optimizer_told_otherwise_is_no_rounding_where_parameters_were_not_recorded(
    tmp_path, told, fault
):
    """Adam's first step is the same whatever its betas are, but for rounding."""
    for run, own in (("a", {}), ("b", told)):
        torch.manual_seed(0)
        model = Attention()
        optimizer = torch.optim.AdamW(model.parameters(), **{"lr": 1e-2, "fused": False} | own)
        tokens = torch.rand(4, 64, generator=torch.Generator().manual_seed(1)).argsort(1)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, optimizer=optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
                optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.first.place.step == 1
    assert found.verdict == ("unexpected" if fault else "suspect"), found.sentence


def with_rates(store: Any, run: str, rate: Any, factor: float = 1.0) -> None:
    """A training in two groups, recorded by default; the factor multiplies the second rate."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    rates = [rate, rate * factor]
    groups = [
        {"params": list(part.parameters()), "lr": one}
        for part, one in zip((model[0], model[2]), rates, strict=True)
    ]
    optimizer = torch.optim.AdamW(groups)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, optimizer=optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 16, generator=draw)).square().mean().backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("rate", "factor", "verdict"),
    [
        (torch.tensor(0.005), 1.0, "suspect"),
        (0.005 * (1 + 2e-16), 1.0, "suspect"),
        (0.005, 1 + 1e-6, "unexpected"),
        (0.005, 1.01, "unexpected"),
    ],
    ids=["tensor", "another schedule", "a little more", "more"],
)
def test_a_rate_that_is_rounded_otherwise_is_no_other_rate(tmp_path, rate, factor, verdict):
    with_rates(tmp_path, "a", 0.005)
    with_rates(tmp_path, "b", rate, factor)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict in (verdict, "identical" if verdict == "suspect" else ""), found.sentence
