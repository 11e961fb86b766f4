"""Options, the data loader, and optimizers that take PopTorch's arguments."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import anchorlib.poptorch as poptorch
from anchorlib.poptorch import OutputMode
from anchorlib.poptorch.groups import OptionGroup
from tests.anchorlib.poptorch.models import Net


def test_the_numbers_of_modes_are_poptorchs():
    assert [OutputMode(n).name for n in range(5)] == ["Final", "EveryN", "All", "Sum", "Default"]


def test_options_chain_and_tell_their_values():
    options = poptorch.Options().deviceIterations(4).outputMode(OutputMode.EveryN, 2).randomSeed(7)
    assert options.Training.gradientAccumulation(3) is options.Training
    assert (options.device_iterations, options.Training.gradient_accumulation) == (4, 3)
    assert (options.output_mode, options.output_return_period) == (OutputMode.EveryN, 2)
    assert options.random_seed == torch.initial_seed() == 7
    assert poptorch.Options().defaultOutputMode()
    assert not options.defaultOutputMode()


@pytest.mark.parametrize(
    "names", [("output_mode", "output_return_period"), ("anchor_mode", "anchor_return_period")]
)
def test_both_spellings_of_keywords_are_taken(names):
    given = dict(zip(names, (OutputMode.EveryN, 10), strict=True))
    options = poptorch.Options()
    options.anchorTensor("a", "fc1", **given)
    wanted = options.anchored_tensors["a"]
    assert (wanted.mode, wanted.period) == (OutputMode.EveryN, 10)
    options.anchorMode(**given)
    assert (options.output_mode, options.output_return_period) == (OutputMode.EveryN, 10)
    with pytest.raises(TypeError, match="unexpected keyword argument 'mode'"):
        options.anchorTensor("b", "fc1", mode=OutputMode.All)


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True, None])
@pytest.mark.parametrize(
    "option", ["deviceIterations", "gradientAccumulation", "replicationFactor"]
)
def test_counts_are_whole_numbers_from_one(option, value):
    options = poptorch.Options()
    group = options.Training if option == "gradientAccumulation" else options
    with pytest.raises(poptorch.Error, match=f"{option} is a whole number from 1"):
        getattr(group, option)(value)


def test_a_model_is_not_replicated():
    assert poptorch.Options().replicationFactor(1).replication_factor == 1
    with pytest.raises(poptorch.Error, match="use DistributedDataParallel"):
        poptorch.Options().replicationFactor(2)
    poptorch.Options().Distributed.configureProcessId(0, 1)
    with pytest.raises(poptorch.Error, match=r"use torch\.distributed"):
        poptorch.Options().Distributed.configureProcessId(0, 2)


def test_a_short_name_means_one_tensor():
    options = poptorch.Options()
    options.anchorTensor("a", "fc1")
    options.anchorTensor("a", "fc1", OutputMode.All)
    assert options.anchored_tensors["a"].mode is OutputMode.All
    with pytest.raises(poptorch.Error, match="anchor 'a' is 'fc1' already"):
        options.anchorTensor("a", "fc2")


def groups():
    options = poptorch.Options()
    return [options, *(one for one in vars(options).values() if isinstance(one, OptionGroup))]


@pytest.mark.parametrize(
    ("number", "name"),
    [(n, name) for n, group in enumerate(groups()) for name in sorted(group.ignored)],
)
def test_options_of_hardware_are_taken_and_noted(caplog, number, name):
    caplog.set_level(logging.DEBUG, "anchorlib")
    group = groups()[number]
    assert getattr(group, name)("anything", 1) is group
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert f"{name}('anything', 1) is not needed here" in record.getMessage()


@pytest.mark.parametrize(
    ("number", "name"),
    [(n, name) for n, group in enumerate(groups()) for name in sorted(group.missed)],
)
def test_options_that_would_change_numbers_are_warned_of(caplog, number, name):
    group = groups()[number]
    getattr(group, name)(True)
    getattr(group, name)(False)
    assert caplog.text.count(f"{name}(True) has no effect here") == 1
    assert "False" not in caplog.text


def test_an_option_that_is_none_is_an_error_that_helps():
    with pytest.raises(AttributeError, match="no option 'deviceIteration' here; did you mean 'dev"):
        poptorch.Options().deviceIteration(2)
    with pytest.raises(AttributeError, match=r"Options\.Training has no option 'accumulate'"):
        poptorch.Options().Training.accumulate(2)
    with pytest.raises(AttributeError):
        poptorch.Options()._hidden  # noqa: B018


def test_copies_have_anchors_of_their_own():
    options = poptorch.Options()
    options.anchorTensor("a", "fc1")
    for made in (copy.copy(options).clone(), copy.deepcopy(options), options.clone()):
        made.anchorTensor("b", "fc2")
        made.Training.gradientAccumulation(2)
        assert options.anchored_tensors.keys() == {"a"}
        assert options.Training.gradient_accumulation == 1


def test_a_model_leaves_the_users_options_as_they_are_and_its_own_cannot_be_changed(caplog):
    options = poptorch.Options()
    training = poptorch.trainingModel(Net(), options)
    inference = poptorch.inferenceModel(Net().eval(), options)
    assert options.output_mode is OutputMode.Default
    for model in (training, inference):
        for change in (
            lambda one: one.outputMode(OutputMode.All),
            lambda one: one.deviceIterations(2),
            lambda one: one.Training.gradientAccumulation(2),
        ):
            with pytest.raises(AttributeError, match="Can't modify frozen Options") as refused:
                change(model.options)
            assert isinstance(refused.value, poptorch.Error)
    assert not caplog.records


def test_what_comes_too_late_for_a_model_is_said(caplog):
    options = poptorch.Options()
    model = poptorch.trainingModel(Net(), options)
    options.deviceIterations(2)
    assert caplog.text.count("comes after a model was built") == 1
    assert (model.options.device_iterations, options.device_iterations) == (1, 2)
    caplog.clear()
    model.options.clone().deviceIterations(3)
    assert not caplog.records


# -- data


def dataset(rows):
    return TensorDataset(torch.arange(rows))


def test_a_loader_gives_a_calls_worth_of_samples():
    options = poptorch.Options().deviceIterations(3)
    options.Training.gradientAccumulation(2)
    loader = poptorch.DataLoader(options, dataset(50), batch_size=4)
    assert loader.combinedBatchSize == 24
    assert loader.options is options
    batches = [batch.tolist() for (batch,) in loader]
    assert batches == [list(range(24)), list(range(24, 48))]


def test_a_loader_takes_poptorchs_arguments_and_torchs():
    mixed = poptorch.DataLoader(
        poptorch.Options(),
        dataset(20),
        batch_size=10,
        shuffle=True,
        mode=poptorch.DataLoaderMode.Async,
        async_options={"early_preload": True},
        generator=torch.Generator().manual_seed(0),
    )
    first, second = ([batch.tolist() for (batch,) in mixed] for _ in range(2))
    assert first != second
    assert sorted(one for batch in first for one in batch) == list(range(20))

    class Stream(IterableDataset):
        def __iter__(self):
            yield from range(10)

    streamed = poptorch.DataLoader(poptorch.Options().deviceIterations(2), Stream(), batch_size=2)
    assert [batch.tolist() for batch in streamed] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    whole = poptorch.DataLoader(poptorch.Options(), [torch.ones(3)], batch_size=None)
    assert (whole.combinedBatchSize, next(iter(whole)).tolist()) == (None, [1, 1, 1])


@pytest.mark.parametrize(
    ("rows", "options", "match"),
    [
        (50, {"batch_size": 4, "drop_last": False}, "50 samples are no multiple of the 24"),
        (20, {"batch_size": 4}, "20 samples are fewer than the 24"),
    ],
)
def test_a_loader_refuses_what_a_model_could_not_take(rows, options, match):
    given = poptorch.Options().deviceIterations(6)
    with pytest.raises(poptorch.Error, match=match):
        poptorch.DataLoader(given, dataset(rows), **options)
    with pytest.raises(poptorch.Error, match=r"takes poptorch\.Options first, not TensorDataset"):
        poptorch.DataLoader(dataset(rows), 4)


# -- optimizers

ARGUMENTS = {
    "SGD": {"momentum": 0.9, "loss_scaling": 1024.0, "velocity_scaling": 1.0},
    "Adam": {"accum_type": torch.float16, "first_order_momentum_accum_type": torch.float32},
    "AdamW": {"loss_scaling": 8, "bias_correction": True, "weight_decay": 0.1},
    "RMSprop": {"use_tf_variant": False, "loss_scaling": None},
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_optimizers_step_as_torchs_do(name):
    mine, theirs = nn.Linear(3, 3), nn.Linear(3, 3)
    theirs.load_state_dict(mine.state_dict())
    given = {k: v for k, v in ARGUMENTS[name].items() if k in ("momentum", "weight_decay")}
    one = getattr(poptorch.optim, name)(mine.parameters(), lr=0.05, **ARGUMENTS[name])
    other = getattr(torch.optim, name)(theirs.parameters(), lr=0.05, **given)
    assert isinstance(one, getattr(torch.optim, name))
    x = torch.randn(5, 3)
    for _ in range(3):
        for model, optimizer in ((mine, one), (theirs, other)):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
    assert all(map(torch.equal, mine.parameters(), theirs.parameters()))
    assert one.poptorch_arguments == {k: v for k, v in ARGUMENTS[name].items() if k not in given}


def test_arguments_that_would_change_updates_are_refused():
    weights = [nn.Parameter(torch.ones(2))]
    for name, argument in (
        ("Adam", {"bias_correction": False}),
        ("AdamW", {"bias_correction": False}),
        ("RMSprop", {"use_tf_variant": True}),
    ):
        with pytest.raises(poptorch.Error, match="is not available here"):
            getattr(poptorch.optim, name)(weights, lr=0.1, **argument)
    with pytest.raises(TypeError, match="unexpected keyword"):
        poptorch.optim.SGD(weights, lr=0.1, nothing=1)


def test_gradients_are_clipped_to_the_norm_that_the_optimizer_names():
    class Steep(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return (self.w * x).sum()

    options = poptorch.Options()
    options.anchorTensor("g", "Accum___w")
    options.anchorTensor("raw", "Gradient___w")
    steep = Steep()
    optimizer = poptorch.optim.SGD(steep.parameters(), lr=1.0, max_grad_norm=1.0)
    model = poptorch.trainingModel(steep, options, optimizer)
    model(torch.tensor([[3.0, 4.0]]))
    assert torch.allclose(model.getAnchoredTensor("g"), torch.tensor([0.6, 0.8]))
    assert model.getAnchoredTensor("raw").tolist() == [3, 4]
    assert torch.allclose(steep.w, torch.tensor([-0.6, -0.8]))


@pytest.mark.parametrize("correct", [True, False])
def test_lamb_steps_as_its_formula_says(correct):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4, dtype=torch.float64))
    gradients = torch.randn(3, 4, dtype=torch.float64)
    optimizer = poptorch.optim.LAMB([weight], lr=0.1, weight_decay=0.01, bias_correction=correct)
    w, m, v = weight.detach().clone(), torch.zeros(4), torch.zeros(4)
    for number, gradient in enumerate(gradients, 1):
        weight.grad = gradient.clone()
        optimizer.step()
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        a, b = (m / (1 - 0.9**number), v / (1 - 0.999**number)) if correct else (m, v)
        change = a / (b.sqrt() + 1e-8) + 0.01 * w
        w = w - 0.1 * w.norm() / change.norm() * change
        assert torch.allclose(weight.detach(), w)


@pytest.mark.parametrize(("name", "noted"), [("LAMB", False), ("AdamW", True)])
def test_an_argument_is_noted_as_not_needed_only_where_it_is(name, noted, caplog):
    caplog.set_level("DEBUG", "anchorlib")
    weights = [nn.Parameter(torch.ones(2))]
    getattr(poptorch.optim, name)(weights, lr=0.1, bias_correction=True)
    assert ("bias_correction not needed here" in caplog.text) == noted


def test_lamb_follows_a_bounded_norm_and_survives_zeros():
    weight, zero = nn.Parameter(torch.full((4,), 5.0)), nn.Parameter(torch.zeros(2))
    optimizer = poptorch.optim.LAMB([weight, zero], lr=1.0, weight_decay=0, max_weight_norm=1.0)
    weight.grad, zero.grad = torch.ones(4), torch.zeros(2)
    assert optimizer.step(lambda: torch.tensor(3.0)).item() == 3
    assert torch.allclose((weight - 5.0).norm(), torch.tensor(1.0))
    assert zero.tolist() == [0, 0]
