"""What the values of two trainings tell of a fault, and what must not be taken for one.

Each case is what B does otherwise, and what the answer has to name; the controls differ as far, and
the same words must not be said of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import anchorlib
from anchorlib import Run
from tests.once import Once

BATCH, CLASSES = 24, 5


@dataclass(frozen=True)
class Training:
    """A classifier, or with `binary` one of two classes.

    rho, adaptive, restores: of a step of SAM, where rho is not 0. shifted, smoothing, level,
    negated, ignored: of the targets and the loss; rows that have none. zeroed, clip: of the
    gradients, which are negated by a clip below 0. crossed: in which order
    the head takes what it is given. last: which row it looks at. scale: of the logits. late: from
    which step on the learning rate is a tenth. fused: whether tanh is written otherwise, which
    rounds. detached: whether a second head leaves the rest alone. calls: how often the norm is
    called. mixed: whether inputs come in another order than their targets.
    """

    binary: bool = False
    rho: float = 0.0
    adaptive: bool = False
    restores: bool = True
    shifted: bool = False
    smoothing: float = 0.0
    level: float = 0.9
    negated: bool = False
    ignored: tuple[int, ...] = ()
    zeroed: bool = True
    clip: float = 0.1
    crossed: bool = False
    last: int = -1
    scale: float = 1.0
    late: int = 9
    fused: bool = False
    detached: bool = True
    calls: int = 1
    mixed: bool = False


class Net(nn.Module):
    def __init__(self, how: Training) -> None:
        super().__init__()
        self.how = how
        self.first, self.beside = nn.Linear(6, 16), nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(32, 1 if how.binary else CLASSES)

    def forward(self, x):
        for _ in range(self.how.calls):
            h = self.norm(self.first(x)[:, self.how.last])
        h = torch.tanh(h) if not self.how.fused else 2 * torch.sigmoid(2 * h) - 1
        both = (h, self.beside(x[:, 0]))
        return self.head(torch.cat(both[::-1] if self.how.crossed else both, 1)) * self.how.scale


def train(how: Training, name: str, store) -> None:
    torch.manual_seed(0)
    model, critic = Net(how), nn.Linear(16, 3)
    parameters = [*model.parameters(), *critic.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False)
    with anchorlib.start(name, store=store) as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        session.watch(critic, tensors="*", prefix="critic")
        for step in range(4):
            optimizer.param_groups[0]["lr"] = 0.1 if step < how.late else 0.01
            if how.zeroed:
                optimizer.zero_grad()
            batch = torch.randn(BATCH, 3, 6), torch.randint(0, CLASSES, (BATCH,))
            if how.mixed:
                batch = (batch[0].flip(0), batch[1])
            backward(how, model, critic, batch)
            if how.rho:
                climb(how, model, critic, batch, optimizer)
            nn.utils.clip_grad_norm_(parameters, abs(how.clip))
            for p in parameters if how.clip < 0 else ():
                p.grad.neg_()
            optimizer.step()


def backward(how, model, critic, batch) -> None:
    x, labels = batch
    beside = model.beside(x[:, 1])
    critic(beside.detach() if how.detached else beside).square().mean().backward()
    told = model(x)
    if how.binary:
        loss = functional.binary_cross_entropy_with_logits(told, torch.full_like(told, how.level))
    else:
        labels = labels.roll(1) if how.shifted else labels.clone()
        labels[list(how.ignored)] = -100
        loss = functional.cross_entropy(told, labels, label_smoothing=how.smoothing)
    loss = -loss if how.negated else loss
    anchorlib.anchor(loss, "loss")
    loss.backward()


def climb(how, model, critic, batch, optimizer) -> None:
    before = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        length = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.add_(p.grad * (p.square() if how.adaptive else 1.0) * (how.rho / length))
    optimizer.zero_grad()
    backward(how, model, critic, batch)
    if how.restores:
        with torch.no_grad():
            for p, old in zip(model.parameters(), before, strict=True):
                p.copy_(old)


PLAIN, SAM, BINARY = Training(), Training(rho=0.05), Training(binary=True)
MOVE = "move of it since step"
FAULTS = {
    "rho": (SAM, {"rho": 0.1}, "pass 0 is 2 times A's"),
    "adaptive": (SAM, {"adaptive": True}, "is A's times the square of what it was"),
    "not restored": (SAM, {"restores": False}, "not put back before the optimizer's step"),
    "rho behind rounding": (SAM, {"rho": 0.1, "fused": True}, "is 2 times A's"),
    "labels": (PLAIN, {"shifted": True}, "the loss's targets differ in"),
    "inputs of others": (PLAIN, {"mixed": True}, "the loss's targets differ in"),
    "mask": (PLAIN, {"ignored": (3,)}, "differ in 1 of 24 rows (row 3: label 3 | ignored)"),
    "mask of as many": (
        replace(PLAIN, ignored=(1, 2)),
        {"ignored": (2, 5)},
        "differ in 2 of 24 rows (row 1: label ignored | 3)",
    ),
    "smoothing": (PLAIN, {"smoothing": 0.1}, "the loss's label smoothing is 0 | 0.1"),
    "smoothing behind rounding": (PLAIN, {"smoothing": 0.1, "fused": True}, "smoothing is 0 | 0.1"),
    "level": (BINARY, {"level": 1.0}, "the loss's target is 0.9 | 1"),
    "level of nothing": (BINARY, {"level": 0.0}, "the loss's target is 0.9 | 0)"),
    "sign": (BINARY, {"negated": True}, "with the other sign"),
    "zero_grad, clipped": (PLAIN, {"zeroed": False}, "zero_grad? B takes"),
    "order": (PLAIN, {"crossed": True}, "takes the same in another order"),
    "row": (PLAIN, {"last": 1}, "index"),
    "schedule": (PLAIN, {"late": 2, "fused": True}, "lr 0.1 | 0.01 from step 2"),
    "detach": (replace(PLAIN, clip=1e9), {"detached": False}, "a detach, or a requires_grad"),
    "calls": (PLAIN, {"calls": 2}, "is called once in A, is called 2 times in B"),
}
CONTROLS = {
    "another gradient is no other move": (SAM, {"smoothing": 0.1}, (MOVE, "put back")),
    "scaled logits are no other target": (PLAIN, {"scale": 0.5}, ("target", "smoothing", "sign")),
    "a row is no target": (PLAIN, {"last": 1}, ("target", "smoothing", "another order")),
    "a clip leaves nothing over": (PLAIN, {"clip": 0.01}, ("zero_grad", "detach")),
    "a negated gradient holds nothing over": (PLAIN, {"clip": -0.1}, ("zero_grad", "detach")),
    "a rounding tells nothing": (
        SAM,
        {"fused": True},
        (MOVE, "target", "smoothing", "zero_grad", "put back", "another order", "from step"),
    ),
}


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    return Once(train, tmp_path_factory.mktemp("runs"))


def told(one: Run, two: Run) -> tuple[str, str]:
    """The verdict, and all that is said in words."""
    found = anchorlib.compare(one, two)
    origins = "; ".join(origin.why for origin in found.origins)
    return found.verdict, f"{found.sentence} {origins}"


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_answer_names_what_the_values_tell_of_a_fault(fault, once):
    one, changes, words = FAULTS[fault]
    verdict, said = told(once(one), once(replace(one, **changes)))
    assert verdict == "unexpected", said
    assert words in said


@pytest.mark.parametrize("control", CONTROLS)
def test_nothing_is_told_of_what_differs_otherwise(control, once):
    one, changes, words = CONTROLS[control]
    verdict, said = told(once(one), once(replace(one, **changes)))
    assert (verdict == "suspect") == (changes == {"fused": True}), said
    # From which step on the losses differ depends on how a processor rounds.
    told_of = re.sub(r"the losses differ from step \d+ on", "", said)
    assert [word for word in words if word in told_of] == [], said


def two_logits(store, name, *, temperature=1.0):
    """A softmax of two, whose gradient sums to nothing: any two of them are multiples."""
    torch.manual_seed(0)
    with anchorlib.start(name, store=store):
        h = anchorlib.anchor(torch.randn(2, requires_grad=True) * 1.0, "h")
        loss = anchorlib.anchor(functional.cross_entropy(h / temperature, torch.tensor(1)), "loss")
        loss.backward()


def one_weight(store, name, *, negated=False):
    torch.manual_seed(0)
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with anchorlib.start(name, store=store) as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            (model(torch.ones(4, 1)) - 9).square().mean().backward()
            if negated:
                model.weight.grad.neg_()
            optimizer.step()


@pytest.mark.parametrize(
    ("train", "fault"), [(two_logits, {"temperature": 2.0}), (one_weight, {"negated": True})]
)
def test_of_a_few_elements_no_relation_is_told_that_any_few_have(train, fault, tmp_path):
    train(tmp_path, "a")
    train(tmp_path, "b", **fault)
    found = anchorlib.compare("a", "b", store=tmp_path)
    said = f"{found.sentence} " + "; ".join(origin.why for origin in found.origins)
    assert found.verdict == "unexpected", said
    assert "times A" not in said
    assert "zero_grad" not in said
