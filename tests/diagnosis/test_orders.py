"""Samples in another order within a batch: each is compared with itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anchorlib
from tests.diagnosis.splitting import Splitting, train
from tests.once import Once

SAID = "B has the samples of a batch in another order"


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    once = Once(train, tmp_path_factory.mktemp("runs"))
    return lambda one, two: anchorlib.compare(once(one), once(two))


@pytest.mark.parametrize("net", ["dense", "words", "images", "normed"])
def test_a_batch_in_another_order_rounds_otherwise_and_nothing_else(net, compared):
    one = Splitting(net, steps=3)
    found = compared(one, one.but(shuffled="both"))
    assert {origin.cls for origin in found.origins} == {"rounding"}, found
    assert found.verdict == "suspect"
    assert SAID in found.sentence
    inputs = [pair for pair in found.pairs() if pair.place.name == "input"]
    assert [pair.equal for pair in inputs] == [True] * 3


@pytest.mark.slow
def test_a_batch_in_another_order_is_expected_where_noise_covers_it(tmp_path, monkeypatch):
    one = Splitting(steps=3)
    train(one, "a", tmp_path)
    train(one.but(shuffled="both"), "b", tmp_path)
    for number in (1, 2, 3):
        monkeypatch.setenv("ANCHOR_PERTURB", f"{number}:float32")
        train(one, "a", tmp_path)
    noise = [f"a-noise{number}" for number in (1, 2, 3)]
    assert anchorlib.compare("a", "b", store=tmp_path, noise=noise).verdict == "expected"


@pytest.mark.parametrize(("fault", "kind"), [("norm", "value"), ("act", "value")])
def test_a_fault_behind_another_order_is_named(fault, kind, compared):
    one = Splitting()
    found = compared(one, one.but(shuffled="both", fault=fault))
    assert found.verdict == "unexpected", found
    bad = next(origin for origin in found.origins if origin.cls == "not_rounding")
    assert (bad.place.name, bad.place.kind) == (fault, kind), found


def test_inputs_in_another_order_than_their_targets_are_not_excused(compared):
    one = Splitting()
    found = compared(one, one.but(shuffled="x"))
    assert found.verdict == "unexpected", found
    assert (found.origins[0].place.name, found.origins[0].cls) == ("loss", "not_rounding"), found


def test_a_layer_for_which_the_order_matters_is_not_excused(compared):
    one = Splitting("carrying")
    found = compared(one, one.but(shuffled="both"))
    assert found.verdict == "unexpected", found
    bad = next(origin for origin in found.origins if origin.cls == "not_rounding")
    assert bad.place.name == "act", found


def test_an_order_that_a_layer_makes_is_no_order_of_the_samples(compared):
    one = Splitting("turning")
    found = compared(one, one.but(fault="turned"))
    assert SAID not in found.sentence
    assert found.verdict == "unexpected", found
    assert found.origins[0].place.name == "first.1", found


def test_another_order_of_what_drops_out_by_place_stays_another_start(compared):
    one = Splitting("dropping")
    found = compared(one, one.but(shuffled="both"))
    assert SAID not in found.sentence
    assert found.verdict == "suspect", found


def test_other_samples_are_no_other_order(compared):
    found = compared(Splitting(), Splitting(seed=1))
    assert SAID not in found.sentence


def test_a_batch_in_another_order_is_put_together_of_passes_and_ranks(compared):
    one, two = Splitting(passes=4), Splitting(ranks=2, loss="mean", shuffled="both")
    found = compared(one, two)
    assert {origin.cls for origin in found.origins} == {"rounding"}, found
    assert SAID in found.sentence
    assert found.sentence.count("are compared as one") == 2


def test_of_records_without_values_no_order_is_known(tmp_path):
    one = Splitting()
    train(one, "a", tmp_path)
    train(one.but(shuffled="both"), "b", tmp_path, mode=anchorlib.Summary())
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert SAID not in found.sentence
    assert found.verdict == "suspect", found


def judged_twice(run, store, turned):
    """A critic that is given a batch in one pass, and what another module made in the next one.

    There each sample has a target of its own, so that samples in another order are a fault.
    """
    torch.manual_seed(0)
    made, judge = nn.Linear(4, 8), nn.Linear(8, 8)
    optimizer = torch.optim.SGD([*made.parameters(), *judge.parameters()], lr=0.1)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(made, tensors="*", prefix="made")
        session.watch(judge, tensors="*", prefix="judge", optimizer=optimizer)
        for _ in range(2):
            x, z = (torch.randn(16, size, generator=draw) for size in (8, 4))
            optimizer.zero_grad()
            x = x.flip(0) if turned == "batch" else x
            made(z)
            anchorlib.anchor(judge(x).square().mean(), "loss").backward()
            fake = made(z)
            fake = fake.flip(0) if turned == "fake" else fake
            targets = torch.linspace(-1, 1, 16)[:, None]
            anchorlib.anchor((judge(fake) - targets).square().mean(), "loss").backward()
            optimizer.step()


@pytest.mark.parametrize("turned", ["batch", "fake"])
def test_an_order_is_made_by_the_operation_of_its_own_pass_alone(turned, tmp_path):
    judged_twice("a", tmp_path, "")
    judged_twice("b", tmp_path, turned)
    found = anchorlib.compare("a", "b", store=tmp_path)
    inputs = [pair for pair in found.pairs() if pair.place.name == "judge.input"]
    first = [one.equal for one in inputs if one.place.step == 0 and one.place.kind == "value"]
    assert first == [True, turned == "batch"], found
    assert (found.verdict == "unexpected") == (turned == "fake"), found


class Channels(nn.Module):
    """Two maps of each channel of an image: one map behind the other, or channel by channel."""

    def __init__(self, interleaved: bool) -> None:
        super().__init__()
        self._interleaved = interleaved

    def forward(self, x):
        maps = torch.stack((x, x - x.roll(1, -1)), 2 if self._interleaved else 1)
        return maps.flatten(1, 2)


def channels(run, store, *, interleaved):
    torch.manual_seed(0)
    model = nn.Sequential(Channels(interleaved), nn.Conv2d(10, 4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        anchorlib.anchor(model(torch.randn(6, 5, 8, 8)).square().mean(), "loss").backward()
        optimizer.step()


def test_channels_in_another_order_are_no_samples(tmp_path):
    channels("a", tmp_path, interleaved=False)
    channels("b", tmp_path, interleaved=True)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert SAID not in found.sentence, found
    assert found.verdict == "unexpected", found
    assert found.origins[0].place.name == "0", found
    assert "arranged otherwise" in found.sentence


class Coded(nn.Module):
    """A net of which a program may call a part alone; its norms have several buffers."""

    def __init__(self):
        super().__init__()
        layers = [nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh()]
        layers += [nn.Linear(16, 16, bias=False), nn.BatchNorm1d(16)]
        self.code = nn.Sequential(*layers, nn.Linear(16, 4))
        self.back = nn.Linear(4, 8)

    def forward(self, x):
        return self.back(self.code(x))


def parts_called_alone(run, store, dealt):
    """Two steps of the whole net, then steps of a part alone, behind a pass without gradients.

    dealt: whether batches are "turned" round, shuffled otherwise in each step ("shuffled"), or
    shuffled for the part alone, whose targets stay where they are ("apart").
    """
    torch.manual_seed(0)
    net = Coded()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    draw, dealing = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(net, tensors="*", optimizer=optimizer)
        for step in range(5):
            x = torch.randn(16, 8, generator=draw)
            targets = x[:, :4].clone()
            order = torch.arange(16)
            if dealt in ("shuffled", "apart") and (dealt == "shuffled" or step > 2):
                order = torch.randperm(16, generator=dealing)
            order = order.flip(0) if dealt in ("turned", "apart") and step < 3 else order
            x = x[order]
            targets = targets if dealt == "apart" and step > 2 else targets[order]
            if step < 2:
                loss = (net(x) - x).square().mean()
            else:
                with torch.no_grad():
                    net.code(x)
                loss = (net.code(x) - targets).square().mean()
            optimizer.zero_grad()
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


@pytest.mark.parametrize("dealt", ["turned", "shuffled"])
def test_the_order_of_a_part_that_is_called_alone_is_known_from_the_steps_before(dealt, tmp_path):
    parts_called_alone("a", tmp_path, "")
    parts_called_alone("b", tmp_path, dealt)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert {origin.cls for origin in found.origins} == {"rounding"}, found
    assert max(error for _, error in errors_of(found)) < 1e-3


def errors_of(found):
    """The names and relative errors of all values that differ."""
    return [
        (pair.place.name, pair.measure.error_eps * pair.measure.eps)
        for pair in found.pairs()
        if pair.place.kind == "value" and not pair.equal
    ]


def test_targets_that_stay_where_their_samples_are_shuffled_stay_apart(tmp_path):
    parts_called_alone("a", tmp_path, "")
    parts_called_alone("b", tmp_path, "apart")
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert max(error for name, error in errors_of(found) if name == "loss") > 1e-2


def told_of_the_time_before(run, store, late):
    """A recurrent net that is given the sequence, and what came at each time before or at it."""
    torch.manual_seed(0)
    net = Told()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(net, tensors="*", optimizer=optimizer)
        for _ in range(2):
            x = torch.randn(12, 6, 4, generator=draw)
            done = torch.randn(12, 6, 5, generator=draw)
            optimizer.zero_grad()
            loss = net(x, done if late else done.roll(1, 1)).square().mean()
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


class Told(nn.Module):
    """A layer of two inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(9, 3)

    def forward(self, x, done):
        return self.layer(torch.cat([x, done], 2))


def test_an_input_that_is_moved_in_time_beside_another_has_no_samples_in_another_order(tmp_path):
    for run, late in (("a", False), ("b", True)):
        told_of_the_time_before(run, tmp_path, late)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert SAID not in found.sentence
    assert found.verdict == "suspect", found
    assert found.origins[0].place.name == "input:1"


def episodes(run, store, *, turned, rolled=False, inner=False):
    """A policy is called once with all steps of eight episodes, which begin alike.

    turned: whether the episodes come in the opposite order. rolled: whether returns are those of
    the next episode. inner: whether the episodes of one step are neighbours.
    """
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(policy, tensors="*", optimizer=optimizer)
        for _ in range(3):
            states, returns = torch.randn(8, 5, 6, generator=draw), torch.randn(8, generator=draw)
            states[:, 0] = 0.5
            states[3] = states[6]  # two episodes went the same way
            returns[3] = returns[6]
            if turned:
                states, returns = states.flip(0), returns.flip(0)
            returns = returns.roll(1) if rolled else returns
            states = states.transpose(0, 1) if inner else states
            told = policy(states.flatten(0, 1)).reshape(states.shape[:2])
            told = anchorlib.anchor(told.sum(0 if inner else 1), "of_episode")
            optimizer.zero_grad()
            anchorlib.anchor((told - returns).square().mean(), "loss").backward()
            optimizer.step()


@pytest.mark.parametrize("inner", [False, True])
def test_episodes_whose_steps_are_samples_have_their_order(inner, tmp_path):
    episodes("a", tmp_path, turned=False, inner=inner)
    episodes("b", tmp_path, turned=True, inner=inner)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert {origin.cls for origin in found.origins} == {"rounding"}, found
    assert max(error for name, error in errors_of(found) if name == "of_episode") < 1e-3
    episodes("c", tmp_path, turned=True, rolled=True, inner=inner)
    assert anchorlib.compare("a", "c", store=tmp_path).verdict == "unexpected"
