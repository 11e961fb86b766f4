"""A frozen trunk under no_grad with a frozen norm, LoRA beside its layer, and a teacher."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import Case, Start, Workload, clear

_HIDDEN, _RANK = 32, 4


@dataclass(frozen=True)
class Frozen(Workload):
    """frozen_eps: of the norm inside the frozen trunk. alpha, lora_dropout: of LoRA.

    temperature: of the teacher. mean: what images are shifted by, a constant of the model.
    thaws: whether the trunk learns although it should not. average: the decay of a moving average.
    """

    lr: float = 5e-3
    frozen_eps: float = 1e-5
    slope: float = 0.01
    alpha: float = 8.0
    lora_dropout: float = 0.1
    temperature: float = 2.0
    mean: float = 0.3
    thaws: bool = False
    average: float = 0.9
    teacher_eval: bool = True
    under: str = "no_grad"
    mask_from: int = 6
    lora: str = "factors"
    distils: float = 0.5

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            teacher = copy.deepcopy(model).requires_grad_(False).train(not self.teacher_eval)
            optimizer = self.adam(p for p in model.parameters() if p.requires_grad)
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(teacher, tensors="*", prefix="teacher")
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                clear(optimizer, self)
                with torch.no_grad():
                    hints = (teacher(images) / self.temperature).softmax(-1)
                logits = model(images)
                told = (logits / self.temperature).log_softmax(-1)
                loss = functional.cross_entropy(logits, labels)
                loss = loss - self.distils * (hints * told).sum(-1).mean()
                anchorlib.anchor(loss, "loss")
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    for kept, new in zip(teacher.parameters(), model.parameters(), strict=True):
                        kept.lerp_(new, 1 - self.average)


class Trunk(nn.Module):
    """What was trained before."""

    def __init__(self, how: Frozen) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(64, _HIDDEN), nn.LayerNorm(_HIDDEN, eps=how.frozen_eps)
        self.act, self.last = nn.LeakyReLU(how.slope), nn.Linear(_HIDDEN, _HIDDEN)

    def forward(self, x):
        """Features."""
        return self.last(self.act(self.norm(self.fc(x))))


class Net(nn.Module):
    """The trunk, a layer with LoRA, a head."""

    def __init__(self, how: Frozen) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("mean", torch.full((64,), how.mean))
        seen = torch.ones(64)
        seen.view(8, 8)[:, how.mask_from :] = 0
        self.register_buffer("seen", seen)
        self.trunk = Trunk(how).requires_grad_(how.thaws)
        self.base = nn.Linear(_HIDDEN, _HIDDEN).requires_grad_(False)
        self.drop = nn.Dropout(how.lora_dropout)
        self.lora_a = nn.Linear(_HIDDEN, _RANK, bias=False)
        self.lora_b = nn.Linear(_RANK, _HIDDEN, bias=False)
        self.head = nn.Linear(_HIDDEN, 10)

    def forward(self, images):
        """Logits."""
        x = (images.flatten(1) - self.mean) * self.seen
        if self.how.under == "no_grad" and not self.how.thaws:
            with torch.no_grad():
                h = self.trunk(x)
        else:
            h = self.trunk(x)
        added = self._lora(h) * (self.how.alpha / _RANK)
        return self.head(torch.relu(self.base(h) + added))

    def _lora(self, h):
        if self.how.lora == "factors":
            return self.lora_b(self.lora_a(self.drop(h)))
        product = self.lora_b.weight @ self.lora_a.weight
        return functional.linear(self.drop(h), product)


CASES = [
    Case("frozen norm eps", "bug", {"frozen_eps": 1e-3}, ("*trunk.norm@value",), r"eps=0\.001"),
    Case("frozen slope", "bug", {"slope": 0.2}, ("*trunk.act@value",), r"negative_slope"),
    Case(
        "frozen norm eps, with gradients",
        "bug",
        {"frozen_eps": 1e-3},
        ("*trunk.norm@value",),
        r"eps=0\.001",
        reference={"under": "grad"},
    ),
    Case(
        "alpha",
        "bug",
        {"alpha": 16.0},
        ("head@value", "teacher.head@value", "*output@value"),
        r"is 2(\.0)? times A|Mul\w* other 2 \| 4",
    ),
    Case("dropout of LoRA", "bug", {"lora_dropout": 0.3}, ("drop@value",), r"p=0\.[13]"),
    Case(
        "temperature",
        "bug",
        {"temperature": 4.0},
        ("loss@value", "head@grad", "output@grad"),
        r"Div\w* other 2 \| 4|temperature",
    ),
    Case("mean", "bug", {"mean": 0.5}, ("mean@value", "teacher.mean@value"), r"\bmean\b"),
    Case(
        "mask off by one",
        "bug",
        {"mask_from": 5},
        ("seen@value", "teacher.seen@value"),
        r"\bseen\b",
    ),
    Case(
        "trunk thawed",
        "bug",
        {"thaws": True},
        ("trunk.*@*",),
        r"requires_grad|(only|alone).{0,60}trunk|trunk.{0,60}(only|alone)",
    ),
    Case(
        "moving average",
        "bug",
        {"average": 0.99},
        ("teacher.*@value",),
        r"is 0\.1\d* times A|lerp",
        step=1,
    ),
    Case(
        "teacher drops out",
        "bug",
        {"teacher_eval": False},
        ("teacher.*@value",),
        r"eval mode|train mode|training",
    ),
    Case(
        "weight decay behind rounding",
        "bug",
        {"lora": "product", "weight_decay": 0.1},
        ("*@updated", "*@delta"),
        r"weight_decay",
    ),
    Case("trunk with gradients", "benign", {"under": "grad"}),
    Case("LoRA as a product", "benign", {"lora": "product"}),
    Case("fused optimizer", "benign", {"implementation": "fused"}),
    Case("foreach optimizer", "benign", {"implementation": "foreach"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("batch turned", "benign", {"turned": True}, reference={"lora_dropout": 0.0}),
    Case("other init", "data", {"init": 1}, ("*@value",)),
    Case("other order", "data", {"order": 1}, ("*input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("again, with gradients", "equal", reference={"under": "grad"}),
]
