"""Some of the planted faults and controls, and that their truth is true: see `make diagnosis`."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import anchorlib
from tests.diagnosis.controls import NOISE, ZERO_BY_THEORY, judge_scene
from tests.diagnosis.faults import draw_fault, judge_fault
from tests.diagnosis.formulas import BUGS, REFERENCE, ROUNDING
from tests.diagnosis.grafts import draw_grafted, judge_grafted
from tests.diagnosis.nets import NETS, Layer, layers
from tests.diagnosis.pairs import ASIDE, Judged, answer, held_out, judge, pairs, record
from tests.diagnosis.planting import distance, gradients
from tests.diagnosis.training import Training, train
from tests.diagnosis.workloads.base import KINDS

SHAPES = {
    "linear": ((12, 20), (16, 20), (16,)),
    "conv": ((3, 4, 8, 8), (5, 4, 3, 3), (5,)),
    "norm": ((12, 20), (20,), (20,)),
    "batch_norm": ((3, 4, 8, 8), (4,), (4,)),
    "attention": ((2, 2, 9, 8),) * 3,
}
SEEDS = (
    *(0, 12),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in (3, 6, 9, 15, 18, 21, 24, 1, 14, 26)),
)

WIDE = [pytest.mark.slow, pytest.mark.wide]


def both(change):
    """Old and new result of a change in float64, of random inputs."""
    torch.manual_seed(0)
    xs = [torch.randn(shape, dtype=torch.float64) for shape in SHAPES.get(change.kind, ((12, 20),))]
    y = REFERENCE[change.kind](*xs)
    if change.forward is not None:
        return y, change.forward(*xs)
    g = torch.randn_like(y)
    old = gradients(REFERENCE[change.kind], xs, g, [True] * len(xs))[change.of]
    return old, change.gradient(g, *xs, y)


@pytest.mark.parametrize("change", ROUNDING, ids=lambda c: f"{c.kind} {c.name}")
def test_a_change_that_only_rounds_is_the_same_mathematics(change):
    assert distance(*both(change)) < 1e-12


@pytest.mark.parametrize("change", BUGS, ids=lambda c: f"{c.kind} {c.name}")
def test_a_bug_is_other_mathematics(change):
    assert distance(*both(change)) > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("net", NETS)
def test_what_stands_in_for_a_layer_computes_the_same_bits(net, tmp_path):
    training = Training(net, structure=5, shape="sam", steps=2)
    layer = next(iter(layers(training.model())))
    train(training, "a", tmp_path)
    train(training.but(custom=layer), "b", tmp_path)
    one, other = (anchorlib.open_run(run, tmp_path) for run in "ab")
    for info in one.tensors():
        digests = [run.series(info.name, info.kind).columns["digest"] for run in (one, other)]
        assert list(digests[0]) == list(digests[1]), info


@pytest.mark.parametrize("net", ZERO_BY_THEORY)
def test_what_is_said_to_be_zero_by_theory_is(net):
    training = Training(net, structure=1)
    model = training.model().double()
    x = torch.randn(6, *model.inputs, dtype=torch.float64)
    model(x).square().sum().backward()
    for name, parameter in model.named_parameters():
        zero = name in ZERO_BY_THEORY[net]
        assert (parameter.grad.norm() < 1e-10) == zero, name
    assert all(isinstance(layer, Layer) for layer in layers(model).values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_planted_fault_is_named_and_classed(seed, tmp_path):
    fault = draw_fault(seed)
    outcome = judge_fault(fault, tmp_path)
    assert outcome.state == "scored", fault
    right = (outcome.origin, outcome.cls, outcome.verdict)
    assert right == (True, True, True), f"{fault}\n{outcome.said}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 7, pytest.param(13, marks=pytest.mark.slow)])
def test_a_grafted_rerun_names_every_planted_fault_and_nothing_else(seed, tmp_path):
    outcome = judge_grafted(draw_grafted(seed), tmp_path)
    assert bool(outcome.seen) == (seed != 7)
    assert outcome.named == outcome.seen, f"{outcome.grafted}\n{outcome.said}"


@pytest.mark.slow
def test_equal_runs_are_identical_whatever_the_noise(tmp_path):
    training = Training("mlp", structure=1, steps=1)
    for perturb in ("", "1", "2"):
        train(training, "a", tmp_path, perturb=perturb)
    train(training, "b", tmp_path)
    found = anchorlib.compare("a", "b", store=tmp_path, noise=NOISE[:2])
    assert (found.verdict, list(found.origins)) == ("identical", [])


@pytest.mark.slow
def test_a_scene_of_controls_raises_no_alarm(tmp_path):
    alarms = list(judge_scene(5, tmp_path))
    assert len(alarms) == 8
    assert [str(alarm) for alarm in alarms if alarm.wrong] == []
    assert all(anchorlib.open_run(name, tmp_path).header()["perturbed"] for name in NOISE)


def the_pair(name):
    """The pair of this name, which must be one that rules may be made by."""
    pair = next(pair for pair in pairs() if str(pair) == name)
    assert not held_out(pair)
    return pair


def test_whole_workloads_are_kept_aside_that_nothing_is_tuned_by():
    every = pairs()
    assert len({str(pair) for pair in every}) == len(every)
    aside = [pair for pair in every if held_out(pair)]
    others = [pair for pair in every if not held_out(pair)]
    assert 1 / 10 < len(aside) / len(every) < 1 / 2
    assert {pair.workload for pair in aside} == set(ASIDE)
    assert not {pair.workload for pair in others} & set(ASIDE)
    for part in (aside, others):
        kinds = Counter(pair.case.kind for pair in part)
        assert set(kinds) == set(KINDS)
        assert kinds["bug"] >= 150
        assert kinds["benign"] >= 100
        assert kinds["equal"] >= 25


def test_every_bug_says_where_an_expert_would_look_and_what_names_its_fix():
    for pair in pairs():
        case = pair.case
        assert bool(case.words) <= (case.kind == "bug"), pair
        assert bool(case.origin) == (case.kind in ("bug", "data")), pair
        assert bool(case.changes) or case.kind == "equal", pair


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("sam/norm eps#0", "unexpected"),
        ("sam/fused backward#0", "suspect"),
        ("sam/other second batch#0", "suspect"),
        pytest.param("gpt/gelu approximate#2", "unexpected", marks=pytest.mark.slow),
        pytest.param("gpt/checkpointed#1", "identical", marks=pytest.mark.slow),
        pytest.param("resnet/batch norm momentum#1", "unexpected", marks=pytest.mark.slow),
        pytest.param("vit/port#1", "identical", marks=WIDE),
        pytest.param("vit/port: gelu approximate#0", "unexpected", marks=WIDE),
    ],
)
def test_whole_trainings_with_a_known_difference_are_judged_rightly(name, verdict, tmp_path):
    pair = the_pair(name)
    record(pair.reference, pair.seed, "a", tmp_path)
    record(pair.changed, pair.seed, "b", tmp_path)
    told = answer("a", "b", tmp_path)
    judged = Judged(pair, told, told)
    assert told.verdict == verdict, told
    assert judged.origin(told) == bool(pair.case.origin), told
    assert judged.named == (pair.case.kind == "bug"), told


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param("gan/own loss#0", marks=WIDE), "sam/2 threads#1", "gpt/betas#1"]
)
def test_noise_runs_settle_what_is_benign_and_no_bug(name, tmp_path):
    (judged,) = judge([the_pair(name)], tmp_path)
    assert judged.wrong == (), judged
