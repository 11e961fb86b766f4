"""Five programs that know nothing of anchorlib, each in another idiom: recorded, a bug named."""

from __future__ import annotations

import json
from itertools import product

import pytest

from tests.anchorlib.launch.launching import EXAMPLES, Bench
from tests.warm import warm_python

TRAIN_AND_EVAL = {
    ("train", step, 0) for step in range(8)
} | {("eval", step, batch) for step in (4, 8) for batch in range(2)}  # fmt: skip

# The records of `loss`: how many steps, and passes in each.
LOSSES = {
    "closure": (3, 4),
    "adversarial": (6, 3),
    "trainer": (8, 1),
    "compiled": (3, 2),
    "accelerated": (2, 4),
}

# What is planted, and the tensor that the comparison has to name: first, or as an origin.
BUGS = {
    "closure": ("labels)\n    loss.backward", "labels, label_smoothing=0.01)\n    loss.backward",
                (0, "loss", "value")),
    "adversarial": ("LeakyReLU(0.2)", "LeakyReLU(0.02)", (0, "netD.features.1", "value")),
    "trainer": ("gamma=0.5", "gamma=0.4", (4, "conv.weight", "updated")),
    "compiled": ("q.shape[-1] ** 0.5", "q.shape[-1]", (0, "blocks.0.proj", "value")),
    "accelerated": ("nn.GELU()", "nn.GELU(approximate='tanh')", (0, "act", "value")),
}  # fmt: skip


def test_every_unedited_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(LOSSES) == set(BUGS)
    for path in EXAMPLES.glob("*.py"):
        assert "anchor" not in path.read_text()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, request):
    """The bench where an example was run as it is, and recorded as `run1`; its name."""
    name = request.param
    warm = Bench(tmp_path_factory.mktemp(name), warm_python())
    alone = warm.python("-W", "error", EXAMPLES / f"{name}.py")
    observed = warm.observed("-W", "error", EXAMPLES / f"{name}.py", options=("--watch", "*"))
    assert (alone.code, alone.err) == (0, "")
    assert observed.code == 0, observed.err
    assert observed.out == alone.out  # its last line is a digest of the weights
    *weights, counted = observed.err.splitlines()
    assert weights
    assert all(line.startswith("anchor: a step of run run1 weighs ") for line in weights)
    assert counted.startswith("anchor: run run1: ")
    return warm, name


@pytest.mark.parametrize(
    "recorded",
    [pytest.param(name, marks=[pytest.mark.long] * (name != "closure")) for name in LOSSES],
    indirect=True,
)
def test_an_unedited_program_is_recorded_bit_for_bit_and_its_bug_is_named(recorded):
    warm, name = recorded
    columns = warm.run()["loss@value"].columns
    steps, passes = LOSSES[name]
    counted = list(zip(columns["step"].tolist(), columns["pass_index"].tolist(), strict=True))
    assert counted == list(product(range(steps), range(passes)))
    assert set(columns["call"].tolist()) == {0}

    right, wrong, named = BUGS[name]
    text = (EXAMPLES / f"{name}.py").read_text()
    assert text.count(right) == 1
    program = warm.program(text.replace(right, wrong))
    assert warm.observed(program, name="bug", options=("--watch", "*")).code == 0
    compared = warm.anchor("compare", "run1", "bug", "--json")
    assert compared.code == 1
    found = json.loads(compared.out)
    places = [found["first"], *found["origins"]]
    assert named in [(place["step"], place["name"], place["kind"]) for place in places]


@pytest.mark.parametrize("recorded", ["trainer"], indirect=True)
def test_evaluation_between_epochs_has_its_phase_and_workers_record_nothing(recorded):
    warm, _ = recorded
    columns = warm.run()["head@value"].columns
    found = zip(*(columns[key].tolist() for key in ("phase", "step", "pass_index")), strict=True)
    assert set(found) == TRAIN_AND_EVAL
    assert [name for name in warm.runs if name != "bug"] == ["run1"]
