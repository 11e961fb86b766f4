"""Values that stand alone: looked at without gradients, made once, or rounded in one run alone."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from anchorlib.diagnosis.causes.frontier import frontier
from anchorlib.diagnosis.investigation import compare_tables
from anchorlib.diagnosis.judgement.rounding.formats import of_unlike_parents
from anchorlib.diagnosis.pairing.join import align
from anchorlib.record import Edges, Parent
from tests.anchorlib.diagnosis.tables import table
from tests.anchorlib.store.records import record
from tests.once import Once

Tensor = torch.Tensor


def hazards(store, run: str, ends: Callable[[Tensor], Tensor], moved: float = 0.0) -> None:
    """A model whose hazards are looked at without gradients first, and then trained."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            x = torch.randn(8, 6, generator=draw) + moved
            with torch.no_grad():
                # No module is called, so that only the anchor is recorded here.
                told = functional.linear(x, model[0].weight, model[0].bias).tanh()
                anchorlib.anchor(ends(functional.linear(told, model[2].weight)), "hazard")
            optimizer.zero_grad()
            hazard = anchorlib.anchor(ends(model(x)), "hazard")
            anchorlib.anchor(-hazard[:, 0].log().mean(), "loss").backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("ends", "moved", "verdict"),
    [
        (torch.sigmoid, 0.5, "suspect"),
        (lambda x: x.softmax(-1), 0.0, "unexpected"),
    ],
    ids=["other data", "other code"],
)
def test_what_is_looked_at_alone_is_told_by_what_training_states(tmp_path, ends, moved, verdict):
    hazards(tmp_path, "a", torch.sigmoid)
    hazards(tmp_path, "b", ends, moved)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found
    assert found.origins[0].place.name == "hazard"


class Words(nn.Module):
    """Scores of words with others."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.others = nn.Embedding(40, 8), nn.Embedding(40, 8)

    def forward(self, at: Tensor, instead: Tensor) -> Tensor:
        return (self.words(at) * self.others(instead)).sum(1)


def drawn(store, run: str, power: float, seed: int = 1) -> None:
    """Words and others that are drawn for them, by chances that are recorded once."""
    torch.manual_seed(0)
    counts = torch.arange(1, 41, dtype=torch.float32)
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
    draw, told = torch.Generator().manual_seed(3), torch.Generator().manual_seed(seed)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        chances = anchorlib.anchor(counts.pow(power) / counts.pow(power).sum(), "chances")
        for _ in range(3):
            at = torch.randint(40, (16,), generator=told)
            instead = torch.multinomial(chances, 16, replacement=True, generator=draw)
            loss = model(at, instead).sigmoid().log().mean()
            optimizer.zero_grad()
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("seed", "verdict"), [(1, "unexpected"), (2, "suspect")], ids=["by code", "by other data"]
)
def test_a_constant_that_differs_is_code_unless_all_data_differ(tmp_path, seed, verdict):
    drawn(tmp_path, "a", 0.75)
    drawn(tmp_path, "b", 1.0, seed)
    found = anchorlib.compare("a", "b", store=tmp_path)
    assert found.verdict == verdict, found
    assert found.origins[0].place.name == "chances"


@pytest.mark.parametrize(
    ("other", "low", "eps"),
    [("bfloat16", True, 0.0), ("float32", True, 2.0**-7), ("float32", False, 0.0)],
)
def test_what_is_made_of_a_value_that_one_run_rounded_is_off_by_its_rounding(other, low, eps):
    """A holds the parent in bfloat16; B holds it in `other`, equal but for that rounding.

    low: whether both runs train in low precision, so that such a type is no fault by itself.
    """
    of_h = [Edges("y", "train", 0, 0, (64,), parents=(Parent("h"),), ops=("Mul",), inputs=((-1,),))]
    wide = torch.full((64,), 1.5)
    bits = wide.bfloat16().view(torch.int16).numpy().view("<u2")
    sides = []
    for run, dtype, factor in (("a", "bfloat16", 1.0), ("b", other, 1 + 2.0**-9)):
        h = wide.numpy() if dtype == "float32" else bits
        made = [
            record("narrow", 0, bits, dtype="bfloat16", order=0, kind="value"),
            record("h", 0, h, dtype=dtype, order=1, kind="value"),
            record("y", 0, wide.numpy() * factor, order=2, kind="value"),
            record("w", 0, wide.numpy(), order=3, kind="updated"),
        ]
        header = {"amp.autocast": "bfloat16" if low else ""}
        sides.append(replace(table(made, run=run, edges={0: of_h}), header={0: header}))
    front = frontier(align(*sides))
    row = next(at for at, one in enumerate(front.alignment.a.tensors) if one.name == "y")
    assert of_unlike_parents(front, row) == eps


@dataclass(frozen=True)
class Made:
    """What a program makes of its data without a graph, beside a model that it trains.

    attack: the step by which samples are moved against the model before they are given to it again.
    again: whether it is given other samples the second time. level: added to the anchored targets.
    noise: the seed of the noise that targets are anchored with. kept: the share that a running
    average keeps of itself. size: of the numbers that the first layer begins with.
    """

    attack: float = 0.05
    again: bool = False
    level: float = 1e-3
    noise: int = 1
    kept: float = 0.9
    size: float = 1.0


def make(how: Made, run: str, store) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6))
    with torch.no_grad():
        model[0].weight.mul_(how.size)
    average = deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
    draw, noise = torch.Generator().manual_seed(1), torch.Generator().manual_seed(how.noise)
    with anchorlib.start(run, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        session.watch(average, tensors="*", prefix="average")
        for step in range(3):
            x = torch.randn(12, 6, generator=draw)
            target = (x - x.mean(0)) / (x.var(0) + how.level).sqrt()
            target = anchorlib.anchor(target, "target")
            drawn = anchorlib.anchor(torch.randn(12, 6, generator=noise), "noise")
            moved = x.clone().requires_grad_()
            functional.mse_loss(model(moved), target).backward()
            moved = (x.flip(1) if how.again else x) + how.attack * moved.grad.sign()
            optimizer.zero_grad()
            loss = functional.mse_loss(model(moved.detach()), target + 0.1 * drawn)
            anchorlib.anchor(loss, "loss").backward()
            optimizer.step()
            with torch.no_grad():
                for old, new in zip(average.parameters(), model.parameters(), strict=True):
                    old.lerp_(new, 1 - how.kept)
                if step:
                    anchorlib.anchor(average(x).square().mean(), "looked_at")


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(make, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize(
    ("changes", "verdict", "name"),
    [
        ({"attack": -0.05}, "unexpected", "input"),
        ({"again": True}, "suspect", "input"),
        ({"level": 1e-1}, "unexpected", "target"),
        ({"noise": 2}, "suspect", "noise"),
        ({"kept": 0.1}, "unexpected", "average.*"),
        ({"size": 3.0}, "suspect", "0.weight"),
    ],
    ids=["attack", "other samples", "targets", "other noise", "average", "start"],
)
def test_what_a_program_makes_of_equal_data_is_code(changes, verdict, name, once):
    found = anchorlib.compare(once(Made()), once(replace(Made(), **changes)))
    assert found.verdict == verdict, found
    assert fnmatchcase(found.origins[0].place.name, name)


@pytest.mark.parametrize(
    "changes", [{"level": 1e-3 * (1 + 2.0**-12)}, {"attack": 0.05 * (1 + 2.0**-22)}]
)
def test_a_rounding_of_what_a_program_makes_is_none(changes, once):
    found = anchorlib.compare(once(Made()), once(replace(Made(), **changes)))
    assert {one.cls for one in found.origins} == {"rounding"}, found
    assert found.verdict == "suspect", found


@pytest.mark.parametrize(("anchored", "cls"), [(True, "not_rounding"), (False, "starts_unequal")])
def test_what_stays_is_code_if_it_was_anchored_and_else_may_be_a_checkpoints(anchored, cls):
    """A parameter of a model that is not trained stays as it is too, beside equal inputs."""
    stated = [Edges("own", "train", 0, 0, (64,), missing=("it has no graph",))]
    numbers = torch.linspace(-1, 1, 64).numpy()
    sides = [
        table(
            [
                made
                for step in (0, 1)
                for made in (
                    record("own", step, numbers * factor, order=2 * step, kind="value"),
                    record("input", step, numbers + step, order=2 * step + 1, kind="value"),
                )
            ],
            run=run,
            edges={0: stated if anchored else []},
        )
        for run, factor in (("a", 1.0), ("b", 1.3))
    ]
    found = compare_tables(align(*sides))
    assert (found.origins[0].place.name, found.origins[0].cls) == ("own", cls)
