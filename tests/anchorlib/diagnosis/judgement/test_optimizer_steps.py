"""How often optimizers step, after how many passes, and what else moves parameters, is told."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import anchorlib
from tests.once import Once

STEPS = 6
AT = 3


@dataclass(frozen=True)
class Training:
    """Two models whose optimizers step in turns, as those of a GAN; one accumulates `passes`.

    again: whose optimizer steps a second time. left_out: whose optimizer does not step. fewer: how
    many passes are left out. writes: a number that is added to a parameter after the step. frozen:
    the module that is frozen. cut: whether its output is detached instead. clip: of all gradients.
    All of that in step AT alone; `frozen` and `cut` from there on, `both` from the first step on.
    watch: what is recorded. scale: of the data. alone: whether one model alone is trained.
    """

    again: str = ""
    left_out: str = ""
    fewer: int = 0
    writes: float = 0.0
    frozen: str = ""
    cut: bool = False
    both: float = 0.0
    clip: float = 0.05
    scale: float = 1.0
    passes: int = 3
    alone: bool = False
    watch: str = "*"


class Maker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.Tanh())
        self.skip, self.out = nn.Linear(6, 12), nn.Linear(12, 5)
        self.cut = False

    def forward(self, x):
        inside = self.inside(x)
        return self.out(self.skip(x) + (inside.detach() if self.cut else inside))


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    models = {"maker": Maker(), "judge": nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))}
    maker, judge = models.values()
    optimizers = {one: torch.optim.Adam(m.parameters(), 1e-2) for one, m in models.items()}

    def step(one: str, number: int) -> None:
        there = number == AT
        for _ in range(1 + (there and how.again == one) - (there and how.left_out == one)):
            optimizers[one].step()

    with anchorlib.start(name, store=store, recorder="thread") as session:
        for one in ("maker",) if how.alone else ("judge", "maker"):
            chosen = {} if how.watch == "default" else {"tensors": how.watch}
            session.watch(models[one], optimizer=optimizers[one], prefix=one, **chosen)
        for number in range(STEPS):
            draw = torch.Generator().manual_seed(number)
            x = torch.randn(how.passes, 16, 6, generator=draw) * how.scale
            if number >= AT and how.frozen:
                maker.get_submodule(how.frozen).requires_grad_(False)
            maker.cut = how.cut and number >= AT
            optimizers["judge"].zero_grad()
            if not how.alone:
                judge(maker(x[0]).detach()).square().mean().backward()
                step("judge", number)
            optimizers["maker"].zero_grad()
            for part in x[: how.passes - (how.fewer if number == AT else 0)]:
                anchorlib.anchor((judge(maker(part)) - 1).square().mean(), "loss").backward()
            nn.utils.clip_grad_norm_(maker.parameters(), how.clip, foreach=False)
            step("maker", number)
            with torch.no_grad():
                maker.skip.weight[1, 2] += how.both + (how.writes if number == AT else 0.0)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


def compared(one: Training, two: Training, once):
    found = anchorlib.compare(once(one), once(two))
    return found, "; ".join([found.sentence, *(origin.why for origin in found.origins)])


PLAIN = Training()
TOLD = {
    "a second step of whoever steps inside": (
        {"again": "maker"},
        "its optimizer stepped once in A, 2 times in B",
    ),
    "a second step, of outputs and gradients alone": (
        {"again": "maker", "watch": "default"},
        "stepped once in A, 2 times in B",
    ),
    "a step that is left out": ({"left_out": "maker"}, " did not step in B"),
    "fewer passes": (
        {"fewer": 1, "alone": True},
        "3 backward passes reach it in step 3 of A, 2 in B",
    ),
    "fewer passes, of outputs and gradients alone": (
        {"fewer": 1, "alone": True, "watch": "default"},
        "3 backward passes reach it in step 3 of A, 2 in B",
    ),
    "a write after the step": (
        {"writes": 1e-3},
        "B alone writes it after the optimizer's step",
    ),
    "a frozen module": ({"frozen": "inside"}, "B has no gradient of maker.inside.* from step"),
    "a cut graph": ({"cut": True}, "B has no gradient of maker.inside.* from step"),
}
CLAIMS = ("stepped", "did not step", "backward pass", "outside of that step", "no gradient of")


@pytest.mark.parametrize("case", TOLD)
def test_what_an_optimizer_is_given_and_does_otherwise_is_told(case, once):
    changes, words = TOLD[case]
    one = replace(PLAIN, watch=changes.get("watch", "*"), alone=changes.get("alone", False))
    found, said = compared(one, replace(one, **changes), once)
    assert words in said
    turned, other = compared(replace(one, **changes), one, once)
    assert (found.verdict, turned.verdict) == ("unexpected", "unexpected"), (said, other)


def test_a_pass_that_stands_for_another_is_no_other_data_without_a_word_of_it(once):
    """The judge's pass follows those of the maker in its step, of which one is left out."""
    _, said = compared(PLAIN, replace(PLAIN, fewer=1), once)
    assert "B is given here what A is given at step 4, pass 3" in said
    assert "step 4 has 4 backward passes in A, 3 in B" in said


CONTROLS = [{"clip": 0.04}, {"scale": 1.1}, {"both": 1e-3}]


@pytest.mark.parametrize("changes", CONTROLS, ids=str)
def test_none_of_it_is_told_of_another_difference(changes, once):
    found, said = compared(PLAIN, replace(PLAIN, **changes), once)
    assert found.verdict != "identical"
    claims = [claim for claim in CLAIMS if claim in said]
    assert claims == (["outside of that step"] if "both" in changes else [])
