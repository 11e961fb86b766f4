"""A loss scale that the program applies and takes off itself is no fault; one that is left is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import anchorlib
from anchorlib.diagnosis.comparison import Comparison
from anchorlib.diagnosis.pairing.taken_gradients import ENOUGH, _is_multiple
from tests.diagnosis.training import perturbed


def trained(  # a training is told by these
    store, run: str, *, everything: bool, scale: float, taken_off: float, clip: float, late: bool
) -> None:
    """late: whether gradients are clipped before the scale is taken off."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*" if everything else None, optimizer=optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            loss = 3 * model(torch.randn(16, 8, generator=draw)).square().mean()
            anchorlib.anchor(loss, "loss")
            (loss * scale).backward()
            if late:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            for parameter in model.parameters():
                parameter.grad.div_(taken_off)
            if not late:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()


def compared(store, **changes) -> Comparison:
    plain = {"everything": True, "scale": 1.0, "taken_off": 1.0, "clip": 1.0, "late": False}
    trained(store, "a", **plain | {"everything": changes.get("everything", True)})
    trained(store, "b", **plain | changes)
    return anchorlib.compare("a", "b", store=store)


@pytest.mark.parametrize("everything", [True, False], ids=["everything", "by default"])
@pytest.mark.parametrize("scale", [1024.0, 0.25])
def test_a_power_of_two_that_is_taken_off_again_is_no_difference(tmp_path, everything, scale):
    found = compared(tmp_path, everything=everything, scale=scale, taken_off=scale)
    assert found.verdict == "expected", found.sentence
    assert not found.origins
    assert any("by the loss scale alone" in note for note in found.notes)


@pytest.mark.parametrize("everything", [True, False], ids=["everything", "by default"])
@pytest.mark.parametrize(
    "changes",
    [
        {"scale": 1024.0},
        {"scale": 1024.0, "clip": 1e-2},
        {"scale": 1024.0, "taken_off": 512.0},
        {"scale": 1024.0, "taken_off": 1024.0, "late": True},
        {"scale": 2.0, "clip": 1e6},
    ],
    ids=["left", "left, and clipped", "half taken off", "clipped before", "left, unclipped"],
)
def test_a_power_of_two_that_reaches_the_optimizer_is_a_fault(tmp_path, everything, changes):
    found = compared(tmp_path, everything=everything, **changes)
    assert found.verdict == "unexpected", found.sentence


def added_up(  # a training is told by these
    store,
    run: str,
    *,
    passes: int,
    scale: float,
    taken_off: float,
    low: bool,
    everything: bool = True,
    clip: float = 1e6,
) -> None:
    """A training in several passes, whose gradients grow from step to step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*" if everything else None, optimizer=optimizer)
        for step in range(3):
            optimizer.zero_grad()
            for _ in range(passes):
                with torch.autocast("cpu", torch.bfloat16, enabled=low):
                    made = model(torch.randn(16, 8, generator=draw))
                loss = made.float().square().mean() * (step + 1)
                anchorlib.anchor(loss, "loss")
                (loss * scale).backward()
            for parameter in model.parameters():
                parameter.grad.div_(taken_off)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()


@pytest.mark.parametrize("everything", [True, False], ids=["everything", "by default"])
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("low", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("scale", [3.0, 1000.0, 0.3])
def test_any_number_that_is_taken_off_again_is_rounding(tmp_path, scale, low, passes, everything):
    plain = {"passes": passes, "low": low, "everything": everything, "scale": 1.0, "taken_off": 1.0}
    added_up(tmp_path, "a", **plain)
    added_up(tmp_path, "b", **plain | {"scale": scale, "taken_off": scale})
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "suspect", found.sentence
    assert all(origin.cls == "rounding" for origin in found.origins)
    assert anchorlib.compare("b", "a", store=tmp_path).verdict == "suspect"


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("taken_off", [1.0, 47.9, 48.5])
def test_any_number_that_reaches_the_optimizer_is_a_fault(tmp_path, taken_off, passes):
    plain = {"passes": passes, "low": False, "scale": 1.0, "taken_off": 1.0}
    added_up(tmp_path, "a", **plain)
    added_up(tmp_path, "b", **plain | {"scale": 48.0, "taken_off": taken_off})
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected", found.sentence
    assert anchorlib.compare("b", "a", store=tmp_path).verdict == "unexpected"


@pytest.mark.parametrize("everything", [True, False], ids=["everything", "by default"])
@pytest.mark.parametrize("clip", [0.5, 5.0])
def test_any_number_that_clipping_hides_in_growing_gradients_is_a_fault(tmp_path, clip, everything):
    """With the larger limit one run's first gradients are not cut yet."""
    plain = {"passes": 1, "low": False, "everything": everything, "clip": clip, "taken_off": 1.0}
    added_up(tmp_path, "a", **plain, scale=1.0)
    added_up(tmp_path, "b", **plain, scale=3000.0)
    for pair in ("ab", "ba"):
        found = anchorlib.compare(*pair, store=tmp_path)
        assert found.verdict == "unexpected", found.sentence


@pytest.mark.parametrize("clip", [1e-2, 0.5])
def test_any_number_that_clipping_hides_is_a_fault(tmp_path, clip):
    plain = {"everything": True, "taken_off": 1.0, "clip": clip, "late": False}
    trained(tmp_path, "a", **plain, scale=1.0)
    trained(tmp_path, "b", **plain, scale=48.0)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "unexpected", found.sentence


@pytest.mark.parametrize("clip", [1e-2, 0.5])
@pytest.mark.parametrize("scale", [3.0, 1000.0])
def test_any_number_that_is_taken_off_before_clipping_is_rounding(tmp_path, scale, clip):
    """Clipping cuts every step, and only that gradients were rounded twice shows the division."""
    plain = {"everything": True, "clip": clip, "late": False}
    trained(tmp_path, "a", **plain, scale=1.0, taken_off=1.0)
    trained(tmp_path, "b", **plain, scale=scale, taken_off=scale)
    for pair in ("ab", "ba"):
        found = anchorlib.compare(*pair, store=tmp_path)
        assert found.verdict == "suspect", found.sentence
        assert all(origin.cls == "rounding" for origin in found.origins)


def differentiated(  # a training is told by these
    store,
    run: str,
    *,
    scale: float = 1.0,
    taken_off: float = 1.0,
    wrong: float = 1.0,
    within: float = 1.0,
    data: int = 1,
) -> None:
    """A loss of a residual, for which the model's result is differentiated inside the forward.

    wrong: by which the residual is multiplied besides. within: by what the result is multiplied
    before it is differentiated, and the slope divided afterwards. data: the seed of the points.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(data)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(16, 2, generator=draw).requires_grad_()
            slope = torch.autograd.grad((within * model(x)).sum(), x, create_graph=True)[0]
            residual = (slope.sum(1) / within * wrong).square().mean()
            anchorlib.anchor(residual, "residual")
            edge = anchorlib.anchor(model(torch.ones(4, 2)).square().mean(), "edge")
            loss = anchorlib.anchor(residual + edge, "loss")
            (loss * scale).backward()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(taken_off)
            optimizer.step()


@pytest.mark.parametrize(
    "changes",
    [{"scale": 3.0, "taken_off": 3.0}, {"scale": 1e3, "taken_off": 1e3}, {"within": 0.03}],
    ids=str,
)
def test_gradients_inside_a_forward_have_no_loss_scale_and_may_have_one_of_their_own(
    tmp_path, changes
):
    differentiated(tmp_path, "a")
    differentiated(tmp_path, "b", **changes)
    with perturbed("1:float32"):
        differentiated(tmp_path, "n")
    found = anchorlib.compare("a", "b", store=tmp_path, noise=["n-noise1"])
    assert found.verdict == "expected", found.sentence
    for pair in ("ab", "ba"):
        found = anchorlib.compare(*pair, store=tmp_path)
        assert found.verdict in ("suspect", "expected"), found.sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"scale": 1000.0, "taken_off": 1.0},
        {"scale": 1000.0, "taken_off": 1000.0, "wrong": 1.01},
        {"wrong": 1.01},
        {"within": 0.03, "wrong": 1.01},
    ],
    ids=["left", "and a factor inside", "a factor inside", "and another inside"],
)
def test_a_fault_inside_a_forward_is_one_beside_a_loss_scale(tmp_path, changes):
    differentiated(tmp_path, "a")
    differentiated(tmp_path, "b", **changes)
    assert anchorlib.compare("a", "b", store=tmp_path).verdict == "unexpected"


def test_other_points_at_which_a_model_is_differentiated_are_other_data(tmp_path):
    differentiated(tmp_path, "a")
    differentiated(tmp_path, "b", data=2)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert (found.verdict, found.origins[0].cls) == ("suspect", "starts_unequal"), found.sentence


def inner(store, run: str, *, scale: float = 1.0, taken_off: float = 1.0) -> None:
    """A step of an inner loop by `torch.autograd.grad`, behind which the outer loss is clipped."""
    torch.manual_seed(0)
    model = nn.Linear(8, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            support, query = torch.randn(2, 12, 8, generator=draw)
            held = dict(model.named_parameters())
            first = anchorlib.anchor(model(support).square().mean(), "support")
            slopes = torch.autograd.grad(first, list(held.values()), create_graph=True)
            adapted = {
                name: one - 0.1 * slope
                for (name, one), slope in zip(held.items(), slopes, strict=True)
            }
            made = torch.func.functional_call(model, adapted, (query,))
            loss = anchorlib.anchor((made.tanh() - 1).square().mean(), "loss")
            (loss * scale).backward()
            for parameter in model.parameters():
                parameter.grad.div_(taken_off)
            nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
            optimizer.step()


def acting(store, run: str, *, scale: float = 1.0, taken_off: float = 1.0) -> None:
    """A critic whose gradients an actor's backward adds to after the critic's optimizer stepped."""
    torch.manual_seed(0)
    actor, critic = nn.Linear(8, 8), nn.Linear(8, 16)
    of_actor = torch.optim.Adam(actor.parameters(), lr=1e-2)
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(actor, tensors="*", optimizer=of_actor, prefix="actor")
        session.watch(critic, tensors="*", optimizer=of_critic, prefix="critic")
        for _ in range(3):
            x = torch.randn(12, 8, generator=draw)
            for model, optimizer, name in ((critic, of_critic, "worth"), (actor, of_actor, "act")):
                optimizer.zero_grad()
                made = critic(x if name == "worth" else actor(x).tanh())
                loss = anchorlib.anchor((made.tanh() - 1).square().mean(), name)
                (loss * scale).backward()
                for parameter in model.parameters():
                    parameter.grad.div_(taken_off)
                nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
                optimizer.step()


@pytest.mark.parametrize("train", [inner, acting])
def test_a_loss_scale_is_known_beside_gradients_that_no_optimizer_takes(tmp_path, train):
    train(tmp_path, "a")
    train(tmp_path, "b", scale=1000.0, taken_off=1000.0)
    train(tmp_path, "c", scale=1000.0)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict in ("suspect", "expected"), found.sentence
    assert anchorlib.compare("a", "c", store=tmp_path).verdict == "unexpected"


ROUNDABLE = st.floats(2.0**-30, 2.0**30, width=32)


@given(
    st.lists(ROUNDABLE, min_size=ENOUGH, max_size=2 * ENOUGH),
    st.floats(2.0**-10, 1, width=32),
    st.booleans(),
)
def test_one_number_leads_to_gradients_that_were_multiplied_or_divided_once(made, factor, divided):
    made, factor = np.array(made, np.float32), np.float32(factor)
    taken = made / factor if divided else made * factor
    assert _is_multiple(taken.astype(np.float64), [made.astype(np.float64)])


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("scale", [3, 1000, 48])
def test_no_number_leads_to_gradients_that_were_divided_and_multiplied(seed, scale):
    draw = np.random.default_rng(seed)
    made = draw.standard_normal(4 * ENOUGH).astype(np.float32)
    taken = made / np.float32(scale) * np.float32(draw.uniform(0.1, 0.9))
    assert _is_multiple(taken.astype(np.float64), [made.astype(np.float64)]) is False


def summed(  # a training is told by these
    store,
    run: str,
    *,
    unit: float = 1.0,
    taken_off: float = 1.0,
    clip: float = 1e6,
    rate: float = 1.0,
    parts: int = 1,
    by_hand: bool = False,
    anchored: bool = True,
    large: float = 1.0,
    later: float = 1.0,
) -> None:
    """A training whose loss is recorded `unit` times as large.

    later: what the unit is multiplied by from the second step on.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2 * rate)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for step in range(3):
            optimizer.zero_grad()
            for part in torch.randn(16, 8, generator=draw).chunk(parts):
                inner = model[0](part)
                erf = 0.5 * inner * (1 + torch.erf(inner / 2**0.5))
                out = model[2](erf) if by_hand else model(part)
                loss = large * out.square().mean() * unit * (later if step else 1.0)
                if anchored:
                    anchorlib.anchor(loss, "loss")
                loss.backward()
            for parameter in model.parameters():
                parameter.grad.div_(taken_off)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()


@pytest.mark.parametrize("anchored", [True, False])
@pytest.mark.parametrize("unit", [16.0, 48.0])
@pytest.mark.parametrize(
    ("reference", "changes"),
    [
        ({}, {}),
        ({}, {"parts": 4}),
        ({"parts": 4, "taken_off": 4.0}, {"parts": 4}),
        ({"unit": 5.0, "taken_off": 5.0}, {}),
    ],
    ids=["alone", "in parts", "of parts", "another unit"],
)
def test_the_unit_of_a_loss_is_no_difference(tmp_path, unit, anchored, reference, changes):
    parts = changes.get("parts", 1)
    summed(tmp_path, "a", anchored=anchored, **reference)
    summed(tmp_path, "b", unit=unit, taken_off=unit * parts, anchored=anchored, **changes)
    for pair in ("ab", "ba"):
        found = anchorlib.compare(*pair, store=tmp_path)
        assert found.verdict in ("expected", "suspect"), found.sentence
        assert all(origin.cls == "rounding" for origin in found.origins)
        if anchored:
            assert found.losses.above_1e3 is None


@pytest.mark.parametrize("unit", [16.0, 48.0])
def test_the_unit_of_a_loss_beside_another_rewriting_is_rounding(tmp_path, unit):
    summed(tmp_path, "a", clip=1e3)
    summed(tmp_path, "b", unit=unit, taken_off=unit, clip=1e3, by_hand=True)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == "suspect", found.sentence
    assert all(origin.cls == "rounding" for origin in found.origins)


@pytest.mark.parametrize("anchored", [True, False])
@pytest.mark.parametrize("unit", [16.0, 48.0])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"taken_off": 15.9},
        {"parts": 4},
        {"parts": 4, "taken_off": 16.0},
        {"later": 2.0, "taken_off": 16.0},
        {"clip": 0.01},
        {"clip": 0.01, "parts": 4},
        {"clip": 0.01, "by_hand": True},
        {"rate": 1.01, "taken_off": 16.0},
    ],
    ids=lambda changes: ", ".join(f"{name} {value}" for name, value in changes.items()) or "left",
)
def test_the_unit_of_a_loss_that_reaches_the_optimizer_is_a_fault(
    tmp_path, unit, changes, anchored
):
    changes = dict(changes, anchored=anchored)
    if changes.get("taken_off") == 16.0:
        changes["taken_off"] = unit
    both = {name: changes[name] for name in ("clip", "large") if name in changes}
    summed(tmp_path, "a", anchored=anchored, **both)
    summed(tmp_path, "b", unit=unit, **changes)
    for pair in ("ab", "ba"):
        found = anchorlib.compare(*pair, store=tmp_path)
        assert found.verdict == "unexpected", found.sentence


@pytest.mark.parametrize("later", [1.0, 2.0])
def test_a_power_of_two_that_no_optimizer_takes_in_any_step_is_no_fault(tmp_path, later):
    """Large gradients are clipped to equal bits, whether the factor was taken off before or not."""
    summed(tmp_path, "a", clip=0.01, large=300.0, anchored=False)
    summed(tmp_path, "b", clip=0.01, large=300.0, anchored=False, unit=16.0, later=later)
    summed(tmp_path, "c", clip=0.01, large=300.0, anchored=False, unit=16.0, taken_off=16.0)
    for run in "bc":
        found = anchorlib.compare("a", run, store=tmp_path)
        if run == "b" and later != 1:  # a loss scale is the same in all steps
            assert found.verdict == "unexpected", found.sentence
            continue
        assert found.verdict == "expected", found.sentence
        assert "or one that clipping removes" in found.sentence


@pytest.mark.parametrize(("unit", "anchored"), [(16.0, True), (48.0, True), (48.0, False)])
def test_a_factor_that_clipping_removes_shows_in_a_loss_and_in_how_it_rounds(
    tmp_path, unit, anchored
):
    both = {"clip": 0.01, "large": 300.0, "anchored": anchored}
    summed(tmp_path, "a", **both)
    summed(tmp_path, "b", **both, unit=unit)
    for pair in ("ab", "ba"):
        found = anchorlib.compare(*pair, store=tmp_path)
        assert found.verdict == "unexpected", found.sentence


def steered(store, run: str, scale: float) -> None:
    """A critic, and from the second step on an actor, whose loss goes through the critic."""
    torch.manual_seed(0)
    critic, actor = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)), nn.Linear(4, 2)
    both = [torch.optim.SGD(one.parameters(), lr=1e-2) for one in (critic, actor)]
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(critic, tensors="*", optimizer=both[0], prefix="critic")
        session.watch(actor, tensors="*", optimizer=both[1], prefix="actor")
        for step in range(4):
            x, moves = torch.randn(16, 4, generator=draw), torch.randn(16, 2, generator=draw)
            missed = critic(torch.cat((x, moves), 1)).square().mean()
            learn(critic, both[0], anchorlib.anchor(missed, "critic_loss") * scale, scale)
            if step:
                critic.requires_grad_(False)
                worth = anchorlib.anchor(-critic(torch.cat((x, actor(x)), 1)).mean(), "actor_loss")
                learn(actor, both[1], worth * scale, scale)
                critic.requires_grad_(True)


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, loss, scale: float) -> None:
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        parameter.grad.div_(scale)
    optimizer.step()


def test_a_loss_that_the_first_step_has_not_is_scaled_as_the_others_are(tmp_path):
    steered(tmp_path, "a", 1.0)
    for number in (1, 2, 3):
        with perturbed(f"{number}:float32"):
            steered(tmp_path, "a", 1.0)
    steered(tmp_path, "b", 1000.0)
    noise = [f"a-noise{number}" for number in (1, 2, 3)]
    found = anchorlib.compare("a", "b", store=tmp_path, noise=noise)
    assert found.verdict == "expected", found


def centred(store, run: str, *, scale: float, taken_off: float, clip: float = 1e9) -> None:
    """One of two losses is scaled inside, and its own parameter's gradient unscaled."""
    torch.manual_seed(0)
    model, centres = nn.Linear(6, 8), nn.Embedding(4, 8)
    both = [torch.optim.SGD(one.parameters(), lr=1e-1) for one in (model, centres)]
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=both[0], prefix="model")
        session.watch(centres, tensors="*", optimizer=both[1], prefix="centres")
        for _ in range(3):
            x, at = torch.randn(16, 6, generator=draw), torch.randint(4, (16,), generator=draw)
            placed = model(x)
            apart = scale * (placed.detach() - centres.weight[at]).square().mean()
            loss = placed.square().mean() + apart / scale + (apart - apart.detach())
            for optimizer in both:
                optimizer.zero_grad()
            anchorlib.anchor(loss, "loss").backward()
            centres.weight.grad.div_(taken_off)
            nn.utils.clip_grad_norm_(centres.parameters(), clip)
            for optimizer in both[::-1]:  # the last one ends the step
                optimizer.step()


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"scale": 4.0, "taken_off": 2.5}, "suspect"),
        ({"scale": 4.0, "taken_off": 1.0}, "unexpected"),
        ({"scale": 4.0, "taken_off": 1.0, "clip": 1e-2}, "unexpected"),
    ],
    ids=["taken off", "left", "hidden by clipping"],
)
def test_a_scale_of_one_parameter_is_none_where_it_is_taken_off(tmp_path, changes, verdict):
    plain = {"scale": 1.0, "taken_off": 1.0, "clip": changes.get("clip", 1e9)}
    centred(tmp_path, "a", **plain)
    centred(tmp_path, "b", **plain | changes)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found


def projected(store, run: str, *, scale: float = 1.0, taken_off: float = 1.0) -> None:
    """The first layer's gradient loses what would lengthen its rows; then all gradients are cut."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 12))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            loss = 30 * model(torch.randn(16, 8, generator=draw)).square().mean()
            anchorlib.anchor(loss, "loss")
            (loss * scale).backward()
            for parameter in model.parameters():
                parameter.grad.div_(taken_off)
            rows, grad = model[0].weight.detach(), model[0].weight.grad
            long = rows / rows.norm(dim=1, keepdim=True)
            grad.sub_((grad * long).sum(1, keepdim=True) * long)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


@pytest.mark.parametrize("scale", [1000.0, 3.0])
def test_a_scale_is_known_by_the_gradients_that_are_only_multiplied(tmp_path, scale):
    projected(tmp_path, "a")
    projected(tmp_path, "b", scale=scale, taken_off=scale)
    projected(tmp_path, "c", scale=scale)
    assert anchorlib.compare("a", "b", store=tmp_path).verdict == "suspect"
    assert anchorlib.compare("a", "c", store=tmp_path).verdict == "unexpected"
