"""Micro-batches and ranks: what splits the same work differently is compared as one."""

from __future__ import annotations

import pytest
import torch

import anchorlib
from tests.anchorlib.capture.test_distributed import run_ranks
from tests.diagnosis.splitting import NETS, Splitting, draw_splitting, train
from tests.once import Once
from tests.seeds import seeds

pytestmark = pytest.mark.slow  # pairs of whole trainings

SEEDS = seeds(checked=0, tested=6, wide=36)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    once = Once(train, tmp_path_factory.mktemp("runs"))
    return lambda one, two: anchorlib.compare(once(one), once(two))


def whole(one):
    """The same training at once."""
    loss = "sum" if one.loss == "sum" else "share"
    return one.but(passes=1, ranks=1, loss=loss, dealt="block", reduce="mean", fault="")


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_training_in_parts_rounds_otherwise_and_nothing_else(seed, turned, compared):
    split = draw_splitting(seed)
    pair = (split, whole(split)) if turned else (whole(split), split)
    found = compared(*pair)
    assert found.verdict in ("suspect", "expected", "identical"), (split, found)
    assert {origin.cls for origin in found.origins} <= {"rounding"}, (split, found)
    assert (found.counts.only_a, found.counts.only_b) == (0, 0), split
    side = "A" if turned else "B"
    ranks, passes = f"{split.ranks} ranks", f"{split.passes} passes"
    parts = [ranks] * (split.ranks > 1) + [passes] * (split.passes > 1)
    clause = f"{side}'s {' and '.join(parts)} are compared as one"
    assert clause in found.sentence
    assert clause in found.notes


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fault_in_a_training_in_parts_is_named(seed, compared):
    split = draw_splitting(seed)
    fault = ("norm", "act")[seed % 2]
    found = compared(whole(split), split.but(fault=fault))
    assert found.verdict == "unexpected", (split, found)
    bad = next(origin for origin in found.origins if origin.cls == "not_rounding")
    assert (bad.place.name, bad.place.kind) == (fault, "value"), (split, found)


FORMS = [  # passes and ranks of A, and of B
    ((2, 2), (1, 4)),
    ((4, 1), (1, 2)),
    pytest.param(((1, 2), (2, 1)), marks=pytest.mark.slow),
    *(
        pytest.param(forms, marks=[pytest.mark.slow, pytest.mark.wide])
        for forms in [((1, 4), (2, 2)), ((2, 1), (1, 4)), ((2, 2), (4, 1))]
    ),
]


def both_split(forms, **changes):
    """Two trainings of one batch, as the parts' means or as their sums."""
    sides = []
    for passes, ranks in forms:
        one = Splitting(passes=passes, ranks=ranks, tells=True).but(**changes)
        if one.loss != "sum":
            one = one.but(loss="mean" if ranks > 1 else "share")
        sides.append(one.but(reduce="sum" if one.loss == "sum" else "mean"))
    return sides


@pytest.mark.parametrize("loss", ["mean", "sum"])
@pytest.mark.parametrize("forms", FORMS)
def test_two_trainings_that_both_split_their_work_are_put_together(forms, loss, compared):
    net = list(NETS)[(sum(map(sum, forms)) + (loss == "sum")) % len(NETS)]
    one, two = both_split(forms, loss=loss, net=net)
    found = compared(one, two)
    assert found.verdict in ("suspect", "expected", "identical"), found
    assert {origin.cls for origin in found.origins} <= {"rounding"}, found
    assert (found.counts.only_a, found.counts.only_b) == (0, 0), found.notes
    assert [part.side for part in found.alignment.merged] == ["a", "b"]
    assert found.sentence.count("are compared as one") == 2


@pytest.mark.parametrize("forms", FORMS[:3])
def test_a_fault_in_one_of_two_split_trainings_is_named(forms, compared):
    one, two = both_split(forms)
    found = compared(one, two.but(fault="act"))
    assert found.verdict == "unexpected", found
    bad = next(origin for origin in found.origins if origin.cls == "not_rounding")
    assert (bad.place.name, bad.place.kind) == ("act", "value"), found


def test_passes_against_ranks_of_other_samples_are_not_put_together(compared):
    one, two = both_split(((2, 1), (1, 2)))
    found = compared(one, two.but(seed=1))
    assert "compared as one" not in found.sentence


def test_ranks_that_sum_for_a_mean_are_told_against_passes_too(compared):
    one, two = both_split(((2, 1), (1, 4)))
    found = compared(one, two.but(reduce="sum"))
    assert found.verdict == "unexpected"
    assert "B is 4 times A, after backward: accumulation or reduction" in found.sentence


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_sum_in_place_of_a_mean_over_ranks_is_told_by_its_factor(ranks, compared):
    split = Splitting(ranks=ranks, loss="mean", reduce="sum")
    found = compared(whole(split), split)
    assert found.verdict == "unexpected"
    assert f"B is {ranks} times A, after backward: reduction" in found.sentence


def test_a_loss_that_is_not_divided_by_its_passes_is_told_by_its_factor(compared):
    split = Splitting(passes=4, loss="mean")
    found = compared(whole(split), split)
    assert found.verdict == "unexpected"
    assert "B is 4 times A, after backward: accumulation" in found.sentence


@pytest.mark.parametrize("turned", [False, True])
def test_means_of_parts_of_different_sizes_are_weighted_by_their_samples(turned, compared):
    split = Splitting(passes=3, loss="weighed", tells=True)
    pair = (split, whole(split)) if turned else (whole(split), split)
    found = compared(*pair)
    assert found.verdict in ("suspect", "expected"), found
    assert {origin.cls for origin in found.origins} == {"rounding"}, found
    assert (found.counts.only_a, found.counts.only_b) == (0, 0)


def test_parts_of_different_sizes_that_count_alike_are_a_fault(compared):
    split = Splitting(passes=3, loss="share")
    found = compared(whole(split), split)
    assert found.verdict == "unexpected"
    assert found.origins[0].place.name == "loss"


def test_ranks_that_are_not_reduced_are_told_of(compared):
    split = Splitting(ranks=2, loss="mean", reduce="none")
    found = compared(whole(split), split)
    assert found.verdict == "unexpected"
    assert any("ranks 0 and 1 of run hold different values" in note for note in found.notes)


@pytest.mark.parametrize("turned", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_split_training_whose_drift_is_the_noise_is_expected(turned, tmp_path, monkeypatch):
    split = Splitting(passes=4, steps=4)
    one, other = (whole(split), split) if turned else (split, whole(split))
    train(one, "a", tmp_path)
    train(other, "b", tmp_path)
    train(other.but(fault="act"), "c", tmp_path)
    for number in (1, 2, 3):
        monkeypatch.setenv("ANCHOR_PERTURB", f"{number}:float32")
        train(one, "a", tmp_path)
    noise = [f"a-noise{number}" for number in (1, 2, 3)]
    assert anchorlib.compare("a", "b", store=tmp_path, noise=noise).verdict == "expected"
    assert anchorlib.compare("a", "c", store=tmp_path, noise=noise).verdict == "unexpected"


def test_a_sum_of_passes_that_cancel_is_judged_by_what_was_summed(tmp_path):
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
    x = torch.cat([x, -0.9999 * x])
    for name, passes in (("a", 1), ("b", 2)):
        torch.manual_seed(0)
        model = torch.nn.Linear(16, 64)
        with anchorlib.start(name, store=tmp_path) as session:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            session.watch(model, tensors="*", optimizer=optimizer)
            for part in x.chunk(passes):
                model(part).sum().backward()
            optimizer.step()
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "suspect", found
    worst = max(origin.measure.error_eps for origin in found.origins)
    assert worst > 8


def test_passes_of_other_work_are_not_taken_together(compared):
    """Twice the samples, in two passes as large as the other's one."""
    found = compared(Splitting(), Splitting(passes=2, dealt="all"))
    assert "compared as one" not in found.sentence


def test_parts_of_which_no_values_were_kept_are_left_out_and_said_to_be(tmp_path):
    split = Splitting(passes=2)
    train(whole(split), "a", tmp_path)
    train(split, "b", tmp_path, mode=anchorlib.Summary())
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict != "unexpected", found
    assert "B's 2 passes are compared as one" in found.notes
    assert any("of b could not be put together and are left out" in one for one in found.notes)


def test_damaged_parts_are_left_out_and_said_to_be(tmp_path):
    split = Splitting(passes=2)
    train(whole(split), "a", tmp_path)
    train(split, "b", tmp_path)
    places = [p for p in tmp_path.glob("b*/rank0/forms/float32_8x64/value/c*") if p.is_file()]
    data = bytearray(places[0].read_bytes())
    data[8 * 64 * 4 + 1] ^= 0xFF  # in the second record
    places[0].write_bytes(data)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.damaged
    assert "damaged in one of the parts" in found.damaged[0]
    assert found.verdict == "suspect", found


def test_shards_of_parameters_are_put_together(tmp_path):
    script = """
        sharded = {sharded}
        from torch.distributed.fsdp import fully_shard
        model = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 16))
        for part in (model[0], model[2], model) if sharded else ():
            fully_shard(part)
        x = torch.randn(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with anchorlib.start("run1", store=store) as session:
            session.watch(model, tensors="*", optimizer=optimizer)
            for _ in range(2):
                optimizer.zero_grad()
                model(x.chunk(world)[rank]).pow(2).mean().backward()
                optimizer.step()
        """
    one, two = tmp_path / "one", tmp_path / "two"
    run_ranks(script.format(sharded=False), one, world=1)
    run_ranks(script.format(sharded=True), two, world=2)
    found = anchorlib.compare(anchorlib.open_run("run1", one), anchorlib.open_run("run1", two))
    assert found.verdict == "suspect", found
    assert {origin.cls for origin in found.origins} == {"rounding"}
    assert (found.counts.only_a, found.counts.only_b) == (0, 0), found.notes
