"""Faults in trainings that autograd sees only in part: the origin, its class and its words."""

from __future__ import annotations

import pytest
import torch

import anchorlib
from tests.diagnosis.programs import (
    ActorCritic,
    Adapted,
    Carried,
    Frozen,
    Gan,
    Moded,
    Rotated,
)

pytestmark = pytest.mark.slow  # pairs of whole trainings


@pytest.fixture
def parted(tmp_path):
    """What compare says of a program and the same with changes."""

    def compared(a, b, steps=None):
        a.record("a", tmp_path, steps)
        b.record("b", tmp_path)
        return anchorlib.compare("a", "b", store=tmp_path)

    return compared


def told(found):
    return [
        f"{one.cls} {one.place.name}@{one.place.kind} {one.place.step}" for one in found.origins
    ]


# -- two optimizers in one step


def test_the_update_of_the_first_of_two_optimizers_is_an_origin_of_its_own(parted):
    found = parted(Gan(), Gan(betas=(0.9, 0.999)))
    [origin] = found.origins
    assert (origin.cls, origin.place.step) == ("not_rounding", 0)
    assert origin.place.name.startswith("d.")
    assert origin.place.kind in ("updated", "delta", "opt.exp_avg")
    assert found.verdict == "unexpected"


def test_what_differs_before_an_origin_is_said_with_why(parted):
    found = parted(Gan(), Gan(betas=(0.9, 0.999)))
    if found.origins[0].place != found.first.place:
        assert "which differs before it, is made by the same operation" in found.sentence
    found = parted(Gan(), Gan(detach=False))
    assert "g.2, which differs before it, is the same tensor under another name" in found.sentence


@pytest.mark.parametrize(
    ("change", "origin"), [({"weigh": 1.01}, "loss_d"), ({"lead": 1.01}, "loss_g")]
)
def test_the_loss_of_either_player_is_the_origin_alone(change, origin, parted):
    assert told(parted(Gan(), Gan(**change))) == [f"not_rounding {origin}@value 0"]


def test_a_missing_detach_says_from_where_gradients_come_back(parted):
    found = parted(Gan(), Gan(detach=False))
    assert told(found) == ["not_rounding g.output@grad 0"]
    assert "in B alone gradients come back to it from d.input" in found.sentence
    turned = parted(Gan(detach=False), Gan())
    assert "in A alone gradients come back to it from d.input" in turned.sentence


def test_advantages_that_are_made_under_no_grad_are_the_origin(parted):
    found = parted(ActorCritic(), ActorCritic(gamma=0.95))
    assert told(found) == ["not_rounding advantages@value 0"]
    found = parted(ActorCritic(), ActorCritic(correction=1))
    assert told(found) == ["not_rounding normed@value 0"]


# -- values that autograd does not follow


@pytest.mark.parametrize("no_grad", [False, True])
def test_a_frozen_layer_with_another_eps_is_code(no_grad, parted):
    found = parted(Frozen(no_grad=no_grad), Frozen(no_grad=no_grad, eps=1e-2))
    assert told(found) == ["not_rounding body.1@value 0"]
    [origin] = found.origins
    assert origin.ops == ("LayerNorm.forward",)
    assert origin.parents == ("body.0@value", "body.1.weight@value", "body.1.bias@value")
    assert "LayerNorm eps 1e-05 | 0.01" in origin.why


def test_dropout_of_an_adapter_is_the_origin_with_the_data_as_its_parent(parted):
    found = parted(Adapted(), Adapted(p=0.2))
    assert told(found) == ["not_rounding drop@value 0"]
    assert found.origins[0].parents == ("input@value",)


def test_a_fake_that_is_changed_on_its_way_through_detach_hangs_on_the_generator(parted):
    found = parted(Gan(), Gan(given=1.001))
    assert told(found) == ["not_rounding d.input@value 0"]
    assert found.origins[0].parents == ("g.output@value",)
    assert "B is 1.001 times A" in found.origins[0].why


def test_state_that_is_carried_through_detach_receives(parted):
    assert told(parted(Carried(), Carried(lr=0.11))) == ["not_rounding embed.weight@updated 0"]


def test_state_that_is_changed_on_its_way_is_the_origin(parted):
    found = parted(Carried(), Carried(damp=1.01))
    assert told(found) == [f"not_rounding input:1.{number}@value 2" for number in (0, 1)]
    assert found.origins[0].parents == ("output:1.0@value",)


def test_another_rotary_table_is_code_unless_the_runs_began_otherwise(parted):
    found = parted(Rotated(), Rotated(base=20_000.0))
    assert told(found) == ["not_rounding cos@value 0"]
    assert found.verdict == "unexpected"
    found = parted(Rotated(), Rotated(base=20_000.0, seed=1))
    assert {one.cls for one in found.origins} == {"starts_unequal"}
    assert found.verdict == "suspect"


# -- modes


@pytest.mark.parametrize("since", [0, 2])
def test_forwards_in_eval_mode_are_matched_and_the_mode_is_said(since, parted):
    found = parted(Moded(), Moded(since=since))
    assert told(found) == [f"not_rounding 1@value {since}"]
    assert f"; B runs in eval mode from step {since};" in found.sentence
    assert not found.counts.only_a
    turned = parted(Moded(since=since), Moded())
    assert told(turned) == [f"not_rounding 1@value {since}"]
    assert f"; A runs in eval mode from step {since};" in turned.sentence


def test_micro_batches_in_eval_mode_beside_an_evaluation_are_matched(parted):
    found = parted(Moded(parts=2, looks=2), Moded(parts=2, looks=2, since=2))
    assert told(found) == ["not_rounding 1@value 2"]
    assert "; B runs in eval mode from step 2;" in found.sentence
    assert "compared as one" not in found.sentence


def test_eval_mode_that_changes_no_bit_is_said_all_the_same(parted):
    found = parted(Moded(plain=True), Moded(plain=True, since=2))
    assert found.verdict == "identical"
    assert found.sentence.endswith("; but B runs in eval mode from step 2.")


@pytest.mark.parametrize("layer", [1, 3])
def test_a_layer_in_eval_mode_inside_a_model_that_trains_is_said(layer, parted):
    found = parted(Moded(), Moded(layer=layer, since=2))
    assert told(found) == [f"not_rounding {layer}@value 2"]
    assert "B has it in eval mode from step 2 on" in found.origins[0].why
    assert found.config_diff[f"eval.{layer}"] == (None, 2)


class Evaluated(Moded):
    """Trains, and is evaluated at the end."""

    def step(self, number):
        if number == 2:
            self.model.eval()
            self.model(torch.ones(32, 16))
            self.model.train()
        else:
            super().step(number)


def test_an_evaluation_after_the_last_step_is_no_training_in_eval_mode(parted):
    found = parted(Evaluated(), Moded(), steps=3)
    assert "eval mode" not in found.sentence
