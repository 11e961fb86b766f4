"""Which micro-batches come back: PopART's own table, for outputs and for anchors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anchorlib.poptorch as poptorch
from anchorlib.poptorch import OutputMode
from tests.anchorlib.poptorch.models import Identity, Plus, anchored, run

ALL, FINAL, SUM = OutputMode.All, OutputMode.Final, OutputMode.Sum
EVERY = OutputMode.EveryN

ONE_TO_EIGHT = [1, 2, 3, 4, 5, 6, 7, 8]
PAIRS = [[1, 2], [3, 4], [5, 6], [7, 8]]

# PopART's anchorreturntype_test: mode, period, iterations, what goes in, what comes out.
INFERENCE = [
    (ALL, 1, 1, [1], 1),
    (EVERY, 1, 1, [1], 1),
    (FINAL, 1, 1, [1], 1),
    (SUM, 1, 1, [1], 1),
    (ALL, 1, 8, ONE_TO_EIGHT, ONE_TO_EIGHT),
    (EVERY, 4, 8, ONE_TO_EIGHT, [4, 8]),
    (FINAL, 1, 8, ONE_TO_EIGHT, 8),
    (SUM, 1, 8, ONE_TO_EIGHT, 36),
    (ALL, 1, 1, [[1, 2]], [1, 2]),
    (EVERY, 1, 1, [[1, 2]], [1, 2]),
    (FINAL, 1, 1, [[1, 2]], [1, 2]),
    (SUM, 1, 1, [[1, 2]], [1, 2]),
    (ALL, 1, 4, PAIRS, PAIRS),
    (EVERY, 2, 4, PAIRS, [[3, 4], [7, 8]]),
    (FINAL, 1, 4, PAIRS, [7, 8]),
    (SUM, 1, 4, PAIRS, [16, 20]),
]

# The same while training: mode, period, iterations, accumulation, in, out.
TRAINING = [
    (ALL, 1, 2, 2, PAIRS, PAIRS),
    (EVERY, 2, 2, 2, PAIRS, [[3, 4], [7, 8]]),  # micro-batches are counted, not updates
    (FINAL, 1, 2, 2, PAIRS, [7, 8]),
    (SUM, 1, 2, 2, PAIRS, [16, 20]),
    (SUM, 1, 1, 1, PAIRS[:1], [1, 2]),
    (SUM, 1, 1, 2, PAIRS[:2], [4, 6]),
    (SUM, 1, 2, 1, PAIRS[:2], [4, 6]),
]


def both_ways(make, options, mode, period, value):
    """The output, and the same tensor anchored, by a model of its own each."""
    given = options()
    given.outputMode(mode, period if mode is EVERY else None)
    output = run(make, given, value)
    given = options()
    given.anchorTensor("a", "add", mode, period)
    return output, anchored(make, given, value, "a")


@pytest.mark.parametrize("case", INFERENCE, ids=str)
def test_inference_gives_what_popart_gives(case):
    mode, period, iterations, given, expected = case

    def options():
        return poptorch.Options().deviceIterations(iterations)

    value = torch.tensor(given, dtype=torch.float32)
    if value.dim() == 1:  # a micro-batch of PopART's is a scalar, PopTorch's has a dimension 0
        expected = torch.tensor(expected).reshape(-1).tolist()
    for found in both_ways(Identity, options, mode, period, value):
        assert found.dtype is torch.float32
        assert found.reshape(-1).tolist() == torch.tensor(expected).reshape(-1).tolist()
        rows = len(given) if mode is ALL else len(given) // period if mode is EVERY else 1
        assert found.shape == (rows, *value.shape[1:])


@pytest.mark.parametrize("case", TRAINING, ids=str)
def test_training_gives_what_popart_gives(case):
    mode, period, iterations, accumulation, given, expected = case

    def options():
        made = poptorch.Options().deviceIterations(iterations)
        made.Training.gradientAccumulation(accumulation)
        return made

    value = torch.tensor(given, dtype=torch.float32)
    outputs, found = both_ways(Plus, options, mode, period, value)
    for one in (outputs[0], found):
        assert one.reshape(-1).tolist() == torch.tensor(expected).reshape(-1).tolist()
        assert one.dtype is torch.float32


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("iterations", [2, 4])
@pytest.mark.parametrize(
    ("mode", "period", "share"),
    [(ALL, 1, 1), (EVERY, 2, 2), (FINAL, 1, 0), (SUM, 1, 0)],
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_so_many_outputs_come_from_a_call(mode, period, share, iterations, accumulation):
    batches = iterations * accumulation
    options = poptorch.Options().deviceIterations(iterations)
    options.Training.gradientAccumulation(accumulation)
    options.outputMode(mode, period)
    output, loss = run(Plus, options, torch.ones(batches * 3, 2))
    rows = batches // share if share else 1
    assert output.shape == (rows * 3, 2)
    assert loss.shape == ((rows,) if rows > 1 else ())


def test_seven_updates_of_four_micro_batches():
    """PopART's anchor shapes; what is made once in an update comes once an update here."""

    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 5)

        def forward(self, x):
            out = self.fc(x)
            return out, out.pow(2).mean()

    for mode, batches, updates in ((ALL, 28, 7), (FINAL, 1, 1)):
        options = poptorch.Options().deviceIterations(7)
        options.Training.gradientAccumulation(4)
        shapes = {
            "fc": (batches * 2, 5),
            "Gradient___fc": (batches * 2, 5),
            "Gradient___fc.weight": (batches * 5, 3),
            "fc.weight": (updates * 5, 3),
            "Accum___fc.weight": (updates * 5, 3),
            "UpdatedVar___fc.weight": (updates * 5, 3),
        }
        for name in shapes:
            options.anchorTensor(name, name, mode)
        model = poptorch.trainingModel(Linear(), options)
        model(torch.randn(56, 3))
        assert {name: tuple(model.getAnchoredTensor(name).shape) for name in shapes} == shapes
        model.destroy()


def test_the_weights_of_a_call_are_each_a_step_after_the_other():
    """PopART's anchor_output_test: w[b] - lr · mean gradient[b] = w[b + 1]."""

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([0.5]))

        def forward(self, x):
            return (self.w * x).pow(2).mean()

    options = poptorch.Options().deviceIterations(4)
    options.Training.gradientAccumulation(2)
    for name in ("w", "Accum___w", "Gradient___w", "UpdatedVar___w"):
        options.anchorTensor(name, name, ALL)
    scale = Scale()
    optimizer = poptorch.optim.SGD(scale.parameters(), lr=1.0)
    model = poptorch.trainingModel(scale, options, optimizer)
    model(torch.randn(24, 1))
    w, accum, each, updated = map(
        model.getAnchoredTensor, ("w", "Accum___w", "Gradient___w", "UpdatedVar___w")
    )
    assert torch.equal(w - accum, updated)
    assert torch.equal(updated[:-1], w[1:])
    assert torch.equal(updated[-1:], scale.w.detach())
    assert torch.equal(each.reshape(4, 2).sum(1) / 2, accum)
    model.destroy()


def test_inference_of_ten_batches_gives_native_rows():
    torch.manual_seed(42)
    layer = nn.Linear(6, 20)
    given = torch.randn(10, 1, 5, 6)
    native = torch.cat([layer(one) for one in given.split(1)]).detach()
    expected = {
        OutputMode.Default: native,
        ALL: native,
        EVERY: native[[4, 9]],
        FINAL: native[-1:],
        SUM: native.sum(0, keepdim=True),
    }
    for mode, rows in expected.items():
        options = poptorch.Options().deviceIterations(10).outputMode(mode, 5)
        model = poptorch.inferenceModel(layer, options)
        if mode is SUM:
            assert torch.allclose(model(given), rows)
        else:
            assert torch.equal(model(given), rows)


def test_modes_act_on_each_anchor_for_itself_and_default_is_the_outputs():
    options = poptorch.Options().deviceIterations(4).outputMode(EVERY, 2)
    for mode in (ALL, FINAL, SUM, OutputMode.Default, None):
        options.anchorTensor(f"{mode}", "add", mode)
    options.anchorTensor("every", "add", EVERY, 4)
    model = poptorch.inferenceModel(Identity(), options)
    output = model(torch.arange(4.0))
    assert output.tolist() == [1, 3]
    found = {name: model.getAnchoredTensor(name).tolist() for name in options.anchored_tensors}
    assert found == {
        f"{ALL}": [0, 1, 2, 3],
        f"{FINAL}": [3],
        f"{SUM}": [6],
        f"{OutputMode.Default}": [1, 3],
        "None": [1, 3],
        "every": [3],
    }
    model.destroy()


def test_counting_begins_anew_in_each_call():
    options = poptorch.Options().deviceIterations(3)
    options.anchorTensor("a", "add", EVERY, 3)
    options.anchorTensor("s", "add", SUM)
    model = poptorch.inferenceModel(Identity(), options)
    for start in (0.0, 10.0, 20.0):
        model(torch.arange(start, start + 3))
        assert model.getAnchoredTensor("a").tolist() == [start + 2]
        assert model.getAnchoredTensor("s").tolist() == [3 * start + 3]
    model.destroy()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "count"),
    [(torch.float16, 3000), (torch.bfloat16, 300), (torch.float32, 300), (torch.int32, 300)],
)
def test_sums_are_exact_where_the_dtype_can_hold_them(dtype, count):
    """PopART sums 1 in half to 2048 at most; here 3000 of them are 3000, if that can be said.

    In bfloat16 a sum that is rounded each time stands still at 256.
    """
    options = poptorch.Options().deviceIterations(count).outputMode(SUM)
    options.anchorTensor("s", "add")
    model = poptorch.inferenceModel(Identity(), options)
    ones = torch.ones(count, dtype=dtype)
    expected = torch.tensor([float(count)]).to(dtype)
    assert torch.equal(model(ones), expected)
    assert torch.equal(model.getAnchoredTensor("s"), expected)
    model.destroy()


# -- what cannot be


def message(action, kind=poptorch.Error):
    with pytest.raises(kind) as refused:
        action()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_each_mode_that_cannot_be_is_refused_in_a_sentence_of_its_own():
    options = poptorch.Options().deviceIterations(5)

    def built(period):
        made = options.clone()
        made.anchorTensor("a", "add", EVERY, period)
        poptorch.inferenceModel(Identity(), made)

    told = [
        message(lambda: built(6)),
        message(lambda: built(3)),
        message(lambda: options.anchorTensor("a", "add", EVERY, -1)),
        message(lambda: options.anchorTensor("a", "add", EVERY)),
        message(lambda: options.anchorTensor("a", "add", "all")),
        message(lambda: options.outputMode(EVERY)),
        message(lambda: options.outputMode(EVERY, 0), AssertionError),
        message(lambda: options.outputMode(2)),
        message(options.outputMode),
    ]
    assert len(set(told)) == len(told)
    assert "at most the 5 micro-batches of a call" in told[0]
    assert "factor of the 5 micro-batches of a call" in told[1]
    assert not options.anchored_tensors


def test_a_period_goes_with_every_n_alone():
    options = poptorch.Options().outputMode(ALL, 7)
    options.anchorTensor("a", "add", SUM, 9)
    assert (options.output_return_period, options.anchored_tensors["a"].period) == (1, 1)
    poptorch.inferenceModel(Identity(), options)


@pytest.mark.parametrize(
    ("period", "fits"), [(1, True), (2, True), (4, True), (8, True), (3, False)]
)
def test_periods_of_what_is_made_at_the_update_fit_into_updates(period, fits):
    options = poptorch.Options().deviceIterations(6)
    options.Training.gradientAccumulation(4)
    options.anchorTensor("u", "UpdatedVar___w", EVERY, period)
    if not fits:
        assert "made once in 4 micro-batches" in message(
            lambda: poptorch.trainingModel(Plus(), options)
        )
        return
    model = poptorch.trainingModel(Plus(), options)
    model(torch.ones(24, 2))
    assert model.getAnchoredTensor("u").shape == (2 * 6 * 4 // max(period, 4),)
    model.destroy()
