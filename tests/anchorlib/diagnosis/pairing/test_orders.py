"""Samples that a model deals itself, and samples that one record alone does not tell apart."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import anchorlib
from anchorlib.diagnosis.pairing.join import align
from anchorlib.diagnosis.pairing.orders.drifted import near_order
from anchorlib.diagnosis.pairing.orders.order import Order
from tests.anchorlib.diagnosis.tables import table
from tests.anchorlib.store.records import record
from tests.diagnosis.training import perturbed
from tests.once import Once

NODES, WIDE = 24, 8
SAID = "B has the samples of a batch in another order"


@dataclass(frozen=True)
class Training:
    """Messages between near nodes, scored by both ends; an edge is as long as the edge back.

    turned: whether edges come in the opposite order. sign: of the score. at: where messages are
    added up. moved: from which step on lengths are a tenth longer.
    """

    turned: bool = False
    sign: float = 1.0
    at: str = "targets"
    moved: int = 99
    steps: int = 5


class Net(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.how, self.step = how, 0
        self.enter, self.edge = nn.Linear(6, WIDE), nn.Linear(1, WIDE)
        self.score, self.act, self.head = nn.Linear(2 * WIDE, 1), nn.Tanh(), nn.Linear(WIDE, 1)

    def forward(self, x):
        how = self.how
        square = (x[:, None] - x).square().sum(-1).detach()
        near = square.topk(5, largest=False).indices[:, 1:]
        sources, targets = torch.arange(NODES).repeat_interleave(4), near.flatten()
        if how.turned:
            sources, targets = sources.flip(0), targets.flip(0)
        lengths = square[sources, targets][:, None] * (1.1 if self.step >= how.moved else 1)
        self.step += 1
        h = self.enter(x)
        message = self.edge(lengths)
        score = self.act(self.score(torch.cat((h[sources], h[targets]), 1))) * how.sign
        at = targets if how.at == "targets" else sources
        return self.head(torch.zeros_like(h).index_add(0, at, score * message * h[sources]))


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = Net(how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    draw = torch.Generator().manual_seed(3)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(how.steps):
            optimizer.zero_grad()
            x = torch.randn(NODES, 6, generator=draw)
            loss = functional.mse_loss(model(x)[:, 0], x.sum(1))
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


PLAIN = Training()


def test_edges_that_a_model_turns_are_the_same_edges(once):
    found = anchorlib.compare(once(PLAIN), once(replace(PLAIN, turned=True)))
    assert {one.cls for one in found.origins} == {"rounding"}, found
    assert SAID in found.sentence


def test_noise_covers_edges_that_a_model_turns_and_no_fault_behind_rounding(tmp_path):
    train(PLAIN, "a", tmp_path)
    train(replace(PLAIN, turned=True), "turned", tmp_path)
    train(replace(PLAIN, turned=True, moved=3), "moved", tmp_path)
    for number in (1, 2, 3):
        with perturbed(f"{number}:float32"):
            train(PLAIN, "a", tmp_path)
    noise = [f"a-noise{number}" for number in (1, 2, 3)]
    compared = partial(anchorlib.compare, "a", store=tmp_path, noise=noise)
    assert compared("turned").verdict == "expected"
    found = compared("moved")
    assert found.verdict == "unexpected"
    assert (found.leaves_noise.place.name, found.leaves_noise.place.step) == ("edge", 3)


@pytest.mark.parametrize("fault", [{"sign": -1.0}, {"at": "sources"}])
def test_a_fault_behind_edges_that_a_model_turns_is_named(fault, once):
    found = anchorlib.compare(once(PLAIN), once(replace(PLAIN, turned=True, **fault)))
    bad = [one.place for one in found.origins if one.cls == "not_rounding"]
    assert found.verdict == "unexpected", found
    assert (bad[0].name, bad[0].step) == ("head", 0)


@given(
    rows=st.lists(st.integers(0, 5), min_size=2, max_size=20),
    later=st.permutations(range(20)),
    order=st.permutations(range(20)),
    drift=st.sampled_from([0.0, 1e-6]),
)
def test_alike_samples_are_told_apart_by_the_first_record_in_which_they_differ(
    rows, later, order, drift
):
    count = len(rows)
    places = np.array([one for one in order if one < count])  # of A's samples, in B
    noise = np.random.default_rng(1).uniform(-drift, drift, (2, count, 1))

    def of_b(values, number):
        made = np.empty_like(values)
        made[places] = values + noise[number]
        return made

    first = np.array(rows, float)[:, None]
    second = np.array([one for one in later if one < count], float)[:, None]
    unknown = Order(np.arange(count), np.zeros(count, np.int64))
    told = unknown.settled(first, of_b(first, 0))
    assert np.abs(of_b(first, 0)[told.places] - first).max() <= drift
    assert len(np.unique(told.alike)) == len(set(rows))
    settled = told.settled(second, of_b(second, 1))
    assert settled.places.tolist() == places.tolist()


def evaluated(store, name: str, *, turned: bool = False, factor: float = 1.0) -> None:
    """A training that evaluates the average of its parameters after each optimizer's step.

    factor: by which the last evaluation's input is multiplied.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, WIDE), nn.Tanh(), nn.Linear(WIDE, 1))
    average = deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(3)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        session.watch(average, prefix="average")
        for step in range(4):
            optimizer.zero_grad()
            x = torch.randn(NODES, 6, generator=draw)
            x = x.flip(0) if turned else x
            anchorlib.anchor(functional.mse_loss(model(x)[:, 0], x.sum(1)), "loss").backward()
            optimizer.step()
            with torch.no_grad():
                for mean, own in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(own, 0.2)
                average.eval()(x * (factor if step == 3 else 1.0))


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "expected"), (1.2, "unexpected")])
def test_an_evaluation_after_the_last_step_reads_the_batch_of_that_step(tmp_path, factor, verdict):
    """No input of it was recorded, and no other pass has its step's number."""
    evaluated(tmp_path, "a")
    with perturbed("1:float32"):
        evaluated(tmp_path, "n")
    evaluated(tmp_path, "b", turned=True, factor=factor)
    found = anchorlib.compare("a", "b", store=tmp_path, noise=["n-noise1"])
    assert found.verdict == verdict, found.sentence


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("other", [False, True], ids=["the same samples", "other samples"])
def test_rows_that_round_in_bfloat16_are_found_again_and_other_rows_are_not(seed, other):
    draw = np.random.default_rng(seed)
    order = draw.permutation(NODES)
    rows = bfloat16(draw.standard_normal((NODES, WIDE)))
    moved = bfloat16(draw.standard_normal((NODES, WIDE))) if other else rows[order]
    ulps = draw.integers(-1, 2, (NODES, WIDE)) * (draw.random((NODES, WIDE)) < 0.3)
    sides = [
        table([record("t", 0, bits.astype("<u2"), dtype="bfloat16", kind="value")], run=run)
        for run, bits in (("a", rows), ("b", moved + ulps))
    ]
    found = near_order(align(*sides), 0)
    if other:
        assert found is None
    else:
        assert found is not None
        assert np.array_equal(order[found.places], np.arange(NODES))


def bfloat16(values):
    """The bits of the values in bfloat16, as integers that leave room for a step down."""
    return torch.tensor(values).bfloat16().view(torch.int16).numpy().astype("<u2").astype(int)


def of_two_lengths(store, name: str, *, turned: bool = False, wrong: float = 1.0) -> None:
    """A pass of batches of two lengths; wrong: by what the second one's loss is multiplied."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, WIDE), nn.Tanh(), nn.Linear(WIDE, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(3)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            losses = []
            for count in (9, 14):
                x = torch.randn(count, 6, generator=draw)
                x = x.flip(0) if turned else x
                losses.append(model(x).square().mean() * (wrong if count == 14 else 1.0))
            anchorlib.anchor(sum(losses), "loss").backward()
            optimizer.step()


@pytest.mark.parametrize(("wrong", "verdict"), [(1.0, "suspect"), (1.1, "unexpected")])
def test_each_batch_of_a_pass_has_an_order_of_its_own(tmp_path, wrong, verdict):
    of_two_lengths(tmp_path, "a")
    of_two_lengths(tmp_path, "b", turned=True, wrong=wrong)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found.sentence


@given(order=st.permutations(range(5)), count=st.integers(1, 4), strays=st.booleans())
def test_parts_that_keep_to_themselves_have_the_order_of_each(order, count, strays):
    places = np.concatenate([np.array(order) + 5 * part for part in range(count)])
    if strays:
        places[[0, -1]] = places[[-1, 0]]
    found = list(Order(places, np.arange(5 * count)).of_parts(5))
    if count == 1:
        assert [one.tolist() for one in found] == [places.tolist()]
    else:
        assert [one.tolist() for one in found] == ([] if strays else [list(order)])


def preferring(store, name: str, *, turned: bool = False, sign: float = 1.0) -> None:
    """A model is called once with what is chosen and what is rejected, 8 samples each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, WIDE), nn.Tanh(), nn.Linear(WIDE, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(3)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            pairs = torch.randn(2, 8, 6, generator=draw)
            pairs = pairs.flip(1) if turned else pairs
            chosen, rejected = model(pairs.flatten(0, 1))[:, 0].unflatten(0, (2, 8))
            margin = anchorlib.anchor(sign * chosen, "chosen") - anchorlib.anchor(rejected, "other")
            anchorlib.anchor(-functional.logsigmoid(margin).mean(), "loss").backward()
            optimizer.step()


@pytest.mark.parametrize(("sign", "verdict"), [(1.0, "suspect"), (-1.0, "unexpected")])
def test_batches_that_a_model_is_called_with_at_once_are_put_in_order_one_by_one(
    tmp_path, sign, verdict
):
    preferring(tmp_path, "a")
    preferring(tmp_path, "b", turned=True, sign=sign)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found.sentence
    assert SAID in found.sentence


def asked_again(store, name: str, *, turned: bool = False, factor: float = 1.0) -> None:
    """A second net learns from three answers of the first one about other samples, stacked."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, WIDE), nn.Tanh(), nn.Linear(WIDE, 4))
    heat = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW([*model.parameters(), *heat.parameters()], lr=1e-2)
    draw = torch.Generator().manual_seed(3)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        session.watch(heat, tensors="*", prefix="heat")
        for step in range(3):
            optimizer.zero_grad()
            x, shown = (torch.randn(count, 6, generator=draw) for count in (9, 14))
            x, shown = (x.flip(0), shown.flip(0)) if turned else (x, shown)
            loss = model(x).square().mean()
            with torch.no_grad():
                answers = torch.stack([model(shown + 0.1 * number) for number in range(3)])
            answers = heat(answers) * (factor if step else 1.0)
            anchorlib.anchor(loss + answers.square().mean(), "loss").backward()
            optimizer.step()


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "expected"), (1.1, "unexpected")])
def test_answers_that_are_stacked_keep_the_order_of_their_samples_in_later_steps(
    tmp_path, factor, verdict
):
    asked_again(tmp_path, "a")
    asked_again(tmp_path, "b", turned=True, factor=factor)
    noise = [f"a-noise{number}" for number in (1, 2, 3)]
    for number in (1, 2, 3):
        with perturbed(f"{number}:float32"):
            asked_again(tmp_path, "a")
    found = anchorlib.compare("a", "b", store=tmp_path, noise=noise)
    assert found.verdict == verdict, found.sentence
    assert SAID in found.sentence
