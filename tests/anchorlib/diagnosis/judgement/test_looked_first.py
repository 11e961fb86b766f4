"""Forwards without gradients: their operations and their order are those of the training."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.once import Once

WIDE = 12


def product(x: torch.Tensor) -> torch.Tensor:
    return x.log().sum()


def of_matrix(x: torch.Tensor) -> torch.Tensor:
    turned = torch.eye(WIDE) - 2 / WIDE  # a reflection, whose determinant is -1
    return torch.linalg.slogdet(turned @ x.diag())[1]


def off(x: torch.Tensor) -> torch.Tensor:
    return (x * (1 + 1e-4)).log().sum()


@dataclass(frozen=True)
class Training:
    """A flow whose norm begins, under `no_grad`, as the first batch has it.

    volume: the logarithm of a determinant. turned: whether batches come in the opposite order.
    tilted: whether the product's matrix has its diagonal twice. spoilt: whether only that first
    forward reads its batch in the opposite order of pixels.
    """

    volume: Callable[[torch.Tensor], torch.Tensor] = product
    turned: bool = False
    tilted: bool = False
    spoilt: bool = False


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(WIDE))

    def forward(self, x):
        return x + self.shift


class Mix(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.how, self.weight = how, nn.Parameter(torch.randn(WIDE, WIDE) / WIDE)
        near_one = torch.linspace(0.5, 1.5, WIDE)
        self.diagonal = nn.Parameter(near_one / near_one.log().mean().exp())

    def forward(self, x):
        matrix = self.weight.tril(0 if self.how.tilted else -1) + self.diagonal.diag()
        return x @ matrix.T, self.how.volume(self.diagonal)


class Flow(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.norm, self.mix, self.out = Norm(), Mix(how), nn.Linear(WIDE, WIDE)

    @torch.no_grad()
    def begin(self, x):
        self.norm.shift.copy_(-x.mean(0))
        self.out(self.mix(self.norm(x))[0])

    def forward(self, x):
        h, volume = self.mix(self.norm(x.tanh()))
        return self.out(h), volume


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model = Flow(how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for step in range(3):
            x = torch.randn(16, WIDE, generator=draw)
            x = x.flip(0) if how.turned else x
            if not step:
                first = x.tanh()
                model.begin(first.flip(1) if how.spoilt else first)
            z, volume = model(x)
            loss = z.square().sum(1).mean() - volume
            anchorlib.anchor(loss, "loss")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize(
    "changes", [{"volume": of_matrix}, {"turned": True}], ids=["logarithm", "order"]
)
def test_what_is_rounding_in_training_is_rounding_in_a_forward_before_it(changes, once):
    found = anchorlib.compare(once(Training()), once(replace(Training(), **changes)))
    assert found.verdict == "suspect", found.sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tilted": True}, "TrilBackward0 diagonal -1 | 0"),
        ({"volume": off}, "B has a Mul that the other lacks"),
        ({"tilted": True, "turned": True}, "TrilBackward0 diagonal -1 | 0"),
    ],
    ids=["argument", "operation", "argument, in another order"],
)
def test_a_fault_in_a_forward_before_training_is_told_by_the_operations_of_training(
    changes, words, once
):
    found = anchorlib.compare(once(Training()), once(replace(Training(), **changes)))
    assert found.verdict == "unexpected", found.sentence
    assert words in found.sentence


def test_another_order_that_only_a_forward_before_training_reads_is_not_excused(once):
    found = anchorlib.compare(once(Training()), once(replace(Training(), spoilt=True)))
    assert found.verdict == "suspect", found.sentence
    assert found.first.place.phase == "no_grad"
    assert "parameters differ before the first step" in found.sentence
    assert "is compared with its own" not in found.sentence


@dataclass(frozen=True)
class Evaluated:
    """A model that is evaluated before each step, or an average of its weights is.

    average: whether the copy is evaluated. told: whether the evaluation's loss is recorded.
    fault: the "token" that is read is the last one, heads are not "turned" back, the head reads
    what the norm was given ("skipped"), or the loss is "doubled", in the training and in the
    evaluation.
    """

    average: bool = False
    told: bool = False
    fault: str = ""


class Tokens(nn.Module):
    def __init__(self, how: Evaluated) -> None:
        super().__init__()
        self.how = how
        self.enter, self.norm, self.out = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        fault = self.how.fault
        h = self.enter(x).tanh()
        parts = h.view(*h.shape[:2], 2, 4).transpose(1, 2)
        parts = parts if fault == "turned" else parts.transpose(1, 2)
        normed = self.norm(self.out(parts.reshape(h.shape)))
        read = h if fault == "skipped" else normed
        return self.head(read[:, -1 if fault == "token" else 0])


def evaluate_first(how: Evaluated, name: str, store) -> None:
    torch.manual_seed(0)
    model = Tokens(how)
    average = deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(3)

    def loss_of(out, wanted):
        return functional.cross_entropy(out, wanted) * (2 if how.fault == "doubled" else 1)

    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        session.watch(average, tensors="*", prefix="average")
        for _ in range(3):
            x, labels = torch.randn(8, 4, 6, generator=draw), torch.arange(8) % 3
            with torch.no_grad():
                out = (average if how.average else model)(x)
                if how.told:
                    anchorlib.anchor(loss_of(out, labels), "evaluation")
            optimizer.zero_grad()
            anchorlib.anchor(loss_of(model(x), labels), "loss").backward()
            optimizer.step()
            with torch.no_grad():
                for mean, own in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(own, 0.1)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    return Once(evaluate_first, tmp_path_factory.mktemp("evaluated"))


@pytest.mark.parametrize("average", [False, True], ids=["the model", "a copy"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [("token", "index 0 | -1"), ("turned", "Transpose"), ("skipped", "B computes it from")],
)
def test_what_an_evaluation_does_otherwise_is_told_as_the_training_states_it(
    average, fault, words, evaluated
):
    one = Evaluated(average=average)
    found = anchorlib.compare(evaluated(one), evaluated(replace(one, fault=fault)))
    assert found.verdict == "unexpected"
    assert found.origins[0].place.name.startswith("average") == average
    assert words in found.sentence


def test_the_loss_of_an_evaluation_explains_no_loss_of_the_training(evaluated):
    one = Evaluated(told=True)
    found = anchorlib.compare(evaluated(one), evaluated(replace(one, fault="doubled")))
    assert found.verdict == "unexpected", found.sentence
    assert [origin.place.name for origin in found.origins[:2]] == ["evaluation", "loss"]


@dataclass(frozen=True)
class Book:
    """A buffer that each step's forward writes anew, as a codebook does.

    fault: whether what is written is the mean in place of the sum. order: whether data differ too.
    """

    fault: bool = False
    order: bool = False


class Writing(nn.Module):
    def __init__(self, how: Book) -> None:
        super().__init__()
        self.how, self.head = how, nn.Linear(6, 2)
        self.register_buffer("codes", torch.randn(4, 6))

    def forward(self, x):
        with torch.no_grad():
            chosen = torch.cdist(x, self.codes).argmin(1)
            sums = torch.zeros(4, 6).index_add_(0, chosen, x)
            self.codes = sums.flip(0) - 3 if self.how.fault else sums
        return self.head(x)


def write(how: Book, name: str, store) -> None:
    torch.manual_seed(0)
    model = Writing(how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(4 if how.order else 3)
    with anchorlib.start(name, store=store, recorder="thread") as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(8, 6, generator=draw)
            anchorlib.anchor(model(x).square().mean(), "loss").backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("changes", "verdict"), [({"fault": True}, "unexpected"), ({"order": True}, "suspect")], ids=str
)
def test_a_buffer_that_code_wrote_of_equal_data_is_no_other_data(tmp_path, changes, verdict):
    write(Book(), "a", tmp_path)
    write(Book(**changes), "b", tmp_path)
    assert anchorlib.compare("a", "b", store=tmp_path).verdict == verdict
