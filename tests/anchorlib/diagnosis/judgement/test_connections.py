"""Programs whose tensors are connected otherwise: what is detached, tied, exchanged or left out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from anchorlib.diagnosis.comparison import Comparison

Tensor = torch.Tensor


class Translating(nn.Module):
    """Keys and values of a memory, which queries read; one embedding at both ends."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.embed = way, nn.Embedding(40, 16)
        self.memory, self.drop = nn.LayerNorm(16), nn.Dropout(0.1)
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 40)
        weight = self.embed.weight
        self.head.weight = nn.Parameter(weight.detach().clone()) if way == "untied" else weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.memory(self.embed(source))
        memory = memory.detach() if self.way == "detached" else memory
        x = self.embed(target) + 1
        x = x if self.way == "passed over" else self.drop(x)
        q, k, v = self.q(x), self.k(memory), self.v(memory)
        q, k = (k, q) if self.way == "exchanged" else (q, k)
        made = (
            (q.unflatten(-1, (2, 8)).mT.mT @ k.unflatten(-1, (2, 8)).mT)
            .softmax(-1)
            .square()
            .sum(-1)
        )
        return self.head(self.norm(x + v * made.repeat_interleave(8, -1)))


def compared(store: Any, way: str, tensors: Any) -> Comparison:
    for run, own in (("a", ""), ("b", way)):
        torch.manual_seed(0)
        model = Translating(own)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        draw = torch.Generator().manual_seed(1)
        with anchorlib.start(run, store=store, recorder="thread") as session:
            session.watch(model, optimizer=optimizer, **tensors)
            for _ in range(2):
                optimizer.zero_grad()
                source, target = torch.randint(0, 40, (2, 6, 5), generator=draw)
                loss = functional.cross_entropy(model(source, target).mT, target)
                anchorlib.anchor(loss, "loss").backward()
                optimizer.step()
    return anchorlib.compare("a", "b", store=store)


@pytest.mark.parametrize("tensors", [{"tensors": "*"}, {}], ids=["everything", "by default"])
@pytest.mark.parametrize(
    ("way", "place", "said"),
    [
        ("detached", "embed.weight", "in A alone gradients come back to memory: B detaches it"),
        ("untied", "embed.weight", "A computes head from embed.weight, B from head.weight"),
        ("exchanged", "norm", "Bmm takes the same in another order: q, k | k, q"),
        ("passed over", "q", "A computes it from drop (Mul), B does not"),
    ],
)
def test_what_is_connected_otherwise_is_named(tmp_path, way, place, said, tensors):
    found = compared(tmp_path, way, tensors)
    assert found.verdict == "unexpected", found.sentence
    assert place in {one.place.name for one in found.origins}
    assert said in repr(found)


class Averaged(nn.Module):
    """A net with an activation, of which an average is kept."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 8)
        self.act, self.last = (nn.SiLU(), nn.SiLU()) if form == "torch's" else (ByHand(), ByHand())

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.last(self.two(self.act(self.one(x)))))


class ByHand(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.sigmoid()


def averaged(store: Any, run: str, form: str, every: int = 1) -> None:
    """A training that keeps an average of the weights, and evaluates it each second step."""
    torch.manual_seed(0)
    model, average = Averaged(form), Averaged(form).requires_grad_(False).eval()
    average.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        session.watch(average, prefix="ema", tensors="*")
        for step in range(4):
            optimizer.zero_grad()
            x = torch.randn(16, 8, generator=draw)
            loss = functional.mse_loss(model(x), x)
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()
            if step % every == 0:
                for kept, moved in zip(average.parameters(), model.parameters(), strict=True):
                    kept.data.lerp_(moved.data, 0.1)
            if step % 2:
                with torch.no_grad():
                    average(x)


def test_another_form_in_a_model_and_its_average_is_no_alarm(tmp_path):
    averaged(tmp_path, "a", "torch's")
    averaged(tmp_path, "b", "by hand")
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.renamed == ()
    assert found.verdict == "suspect", found.sentence


def test_an_average_that_one_run_moves_seldom_is_a_fault(tmp_path):
    averaged(tmp_path, "a", "torch's")
    averaged(tmp_path, "b", "torch's", every=2)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected", found.sentence
    assert found.origins[0].place.name.startswith("ema.")
    assert "A alone moves it since step 1" in found.sentence


class Following(nn.Module):
    """A state that is anchored inside the model, returned, and given again with the next frame."""

    def __init__(self) -> None:
        super().__init__()
        self.new, self.name = nn.Linear(12, 8), nn.Linear(8, 3)

    def forward(self, frame: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = anchorlib.anchor(self.new(torch.cat((frame, state), 1)).tanh(), "state")
        return self.name(state), state


@pytest.mark.parametrize("flows", [True, False])
def test_a_state_that_two_names_have_is_told_where_one_run_cuts_its_graph(tmp_path, flows):
    for run, goes_on in (("a", True), ("b", flows)):
        torch.manual_seed(0)
        model = Following()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
        draw = torch.Generator().manual_seed(1)
        with anchorlib.start(run, store=tmp_path, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                state, loss = torch.zeros(16, 8), torch.zeros(())
                for frame in torch.randn(3, 16, 4, generator=draw):
                    told, state = model(frame, state)
                    loss = loss + told.square().mean()
                    state = state if goes_on else state.detach()
                loss.backward()
                optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == ("identical" if flows else "unexpected"), found
    if not flows:
        assert found.origins[0].place.name in ("state", "output:1")
        assert "B detaches it" in found.sentence


class Stacked(nn.Module):
    """Two stacks that each make maps; the second one is given the maps of the first."""

    def __init__(self, *, flows: bool) -> None:
        super().__init__()
        self.flows = flows
        self.enter, self.maps = nn.Linear(6, 8), nn.ModuleList(nn.Linear(8, 4) for _ in range(2))
        self.back, self.mix = nn.Linear(4, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.enter(x).tanh()
        first = self.maps[0](x)
        x = self.mix(x + self.back(first if self.flows else first.detach())).tanh()
        return first, self.maps[1](x)


@pytest.mark.parametrize(("flows", "run"), [((True, False), "A"), ((False, True), "B")])
def test_a_result_that_one_run_gives_on_detached_is_told_under_the_models_own_name(
    tmp_path, flows, run
):
    for name, own in zip("ab", flows, strict=True):
        torch.manual_seed(0)
        model = Stacked(flows=own)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        draw = torch.Generator().manual_seed(1)
        with anchorlib.start(name, store=tmp_path, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                first, second = model(torch.randn(12, 6, generator=draw))
                loss = first.square().mean() + (second - 1).square().mean()
                anchorlib.anchor(loss, "loss").backward()
                optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected", found
    assert f"in {run} alone gradients come back to it from back (detach?)" in found.sentence


class Joined(nn.Module):
    """Two embeddings that a tower reads together, and a product of both beside it."""

    def __init__(self, *, flows: bool) -> None:
        super().__init__()
        self.flows = flows
        self.user, self.item = nn.Embedding(20, 8), nn.Embedding(20, 8)
        self.tower = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        user, item = self.user(x[:, 0]), self.item(x[:, 1])
        both = torch.cat([user, item], 1)
        deep = self.tower(both if self.flows else both.detach())
        return deep[:, 0] + (user * item).sum(1)


@pytest.mark.parametrize(("flows", "run"), [((True, False), "A"), ((False, True), "B")])
def test_several_tensors_that_one_run_detaches_together_are_told(tmp_path, flows, run):
    for name, own in zip("ab", flows, strict=True):
        torch.manual_seed(0)
        model = Joined(flows=own)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        draw = torch.Generator().manual_seed(1)
        with anchorlib.start(name, store=tmp_path, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                loss = (model(torch.randint(0, 20, (12, 2), generator=draw)) - 1).square().mean()
                anchorlib.anchor(loss, "loss").backward()
                optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected", found
    assert f"in {run} alone gradients come back to it from tower (detach?)" in found.sentence


class Chunked(nn.Module):
    """A recurrence over eight places, whose state may be detached between two chunks of four."""

    def __init__(self, *, flows: bool) -> None:
        super().__init__()
        self.flows, self.decay = flows, nn.Parameter(torch.full((6,), -0.5))

    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for place in range(8):
            if place == 4 and not self.flows:
                state = state.detach()
            state = state * self.decay.exp() + x[:, place]
            states.append(state)
        return torch.stack(states, 1)


@pytest.mark.parametrize(("flows", "run"), [((True, False), "A"), ((False, True), "B")])
def test_a_state_that_is_detached_inside_a_module_is_told(tmp_path, flows, run):
    for name, own in zip("ab", flows, strict=True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 6), Chunked(flows=own), nn.Linear(6, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        draw = torch.Generator().manual_seed(1)
        with anchorlib.start(name, store=tmp_path, recorder="thread") as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                loss = (model(torch.randn(12, 8, 5, generator=draw)) - 1).square().mean()
                anchorlib.anchor(loss, "loss").backward()
                optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected", found
    said = f"inside 1 gradients go on behind an input of Mul in {run} alone (detach?)"
    assert said in found.sentence
