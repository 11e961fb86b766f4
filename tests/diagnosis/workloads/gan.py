"""A GAN on digits: two optimizers, and a fake that passes detach on its way to the critic."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import Case, Start, Workload

_HIDDEN, _NOISE = 32, 8


@dataclass(frozen=True)
class GAN(Workload):
    """critic_betas: of the critic's optimizer alone. detaches: whether the generator is left alone
    in the critic's pass; its gradients are forgotten before that, so that it matters.

    saturates: the generator's loss as it was written first. real: the label of real images.
    spread: whether the critic sees how far a batch is spread, and by which correction.
    again: whether the critic sees a new fake in the generator's turn, else the one from before.
    """

    lr: float = 2e-3
    betas: tuple[float, float] = (0.5, 0.999)
    weight_decay: float = 0.0
    critic_betas: tuple[float, float] = (0.5, 0.999)
    critic_lr: float = 2e-3
    detaches: bool = True
    saturates: bool = False
    real: float = 0.9
    slope: float = 0.2
    correction: int = 1
    again: bool = True
    turns: int = 1
    fake_scale: float = 1.0
    forgets_critic: bool = True
    eval_generator: bool = False
    written: str = "torch"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            made, judge = Generator(), Critic(self)
            of_made = self.adam(made.parameters())
            of_judge = self.adam(judge.parameters(), betas=self.critic_betas, lr=self.critic_lr)
            session.watch(made, tensors="*", optimizer=of_made, prefix="G")
            session.watch(judge, tensors="*", optimizer=of_judge, prefix="D")
            torch.manual_seed(seed)
            for images, _ in self.images(seed):
                made.train(not self.eval_generator)
                for _ in range(self.turns):
                    z = torch.randn(len(images), _NOISE)
                    fake = self._critic(made, judge, of_made, of_judge, images, z)
                self._generator(made, judge, of_made, fake)
                session.step()

    def _critic(self, made, judge, of_made, of_judge, images, z):
        of_made.zero_grad()
        if self.forgets_critic:
            of_judge.zero_grad()
        fake = made(z)
        given = fake.detach() if self.detaches else fake
        given = given if self.fake_scale == 1 else given * self.fake_scale
        right = self._loss(judge(images.flatten(1)), self.real)
        wrong = self._loss(judge(given), 0.0)
        loss = right + wrong
        anchorlib.anchor(loss, "loss_d")
        loss.backward(retain_graph=not self.detaches)
        of_judge.step()
        return made(z) if self.again else fake

    def _generator(self, made, judge, of_made, fake):
        if self.detaches:
            of_made.zero_grad()
        told = judge(fake)
        loss = -self._loss(told, 0.0) if self.saturates else self._loss(told, 1.0)
        anchorlib.anchor(loss, "loss_g")
        loss.backward()
        of_made.step()

    def _loss(self, told: torch.Tensor, label: float) -> torch.Tensor:
        if self.written == "own":
            return (
                functional.softplus(-told) * label + functional.softplus(told) * (1 - label)
            ).mean()
        return functional.binary_cross_entropy_with_logits(told, torch.full_like(told, label))


class Generator(nn.Module):
    """Noise to an image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(_NOISE, _HIDDEN), nn.BatchNorm1d(_HIDDEN)
        self.act, self.out = nn.ReLU(), nn.Linear(_HIDDEN, 64)

    def forward(self, z):
        """An image."""
        return torch.tanh(self.out(self.act(self.norm(self.first(z)))))


class Critic(nn.Module):
    """An image to how real it looks."""

    def __init__(self, how: GAN) -> None:
        super().__init__()
        self.how = how
        self.first, self.act = nn.Linear(64, _HIDDEN), nn.LeakyReLU(how.slope)
        self.out = nn.Linear(_HIDDEN + 1, 1)

    def forward(self, x):
        """How real, before a sigmoid."""
        h = self.act(self.first(x))
        spread = h.std(0, correction=self.how.correction).mean().expand(len(h), 1)
        return self.out(torch.cat((h, spread), 1))


_OF_D = ("D.*@updated", "D.*@delta", "D.*@opt.*")
_CRITIC = ("D@value", "D.out@value", "D.out.input@value", "D.output@value", "D.out*@value")
CASES = [
    Case("critic's betas", "bug", {"critic_betas": (0.9, 0.999)}, _OF_D, r"betas?"),
    Case("critic's learning rate", "bug", {"critic_lr": 1e-3}, _OF_D, r"\blr\b"),
    Case(
        "detach missing",
        "bug",
        {"detaches": False},
        ("G.*@grad", "G.*@pass_grad"),
        r"detach|only in B|in B alone",
    ),
    Case("saturating loss", "bug", {"saturates": True}, ("loss_g@value", "D*@grad"), r"\bNeg"),
    Case("real label", "bug", {"real": 1.0}, ("loss_d@value",), r"target|label"),
    Case("slope", "bug", {"slope": 0.01}, ("D.act@value",), r"negative_slope"),
    Case("biased spread", "bug", {"correction": 0}, _CRITIC, r"correction|unbiased"),
    Case(
        "fake scaled",
        "bug",
        {"fake_scale": 0.9},
        ("D.input@value", "D*input@value", "D.first@value", "D.input*@value"),
        r"is 0\.9\d* times A",
    ),
    Case(
        "critic's zero_grad missing",
        "bug",
        {"forgets_critic": False},
        ("D.*@grad", "D.*@pass_grad"),
        r"zero_grad",
    ),
    Case(
        "generator in eval mode",
        "bug",
        {"eval_generator": True},
        ("G.norm@value", "G*input*@value", "G.first@value", "G*@value"),
        r"eval mode",
    ),
    Case(
        "old fake",
        "bug",
        {"again": False},
        ("G.norm.running_*@value", "G.norm.*@value", "G.*@*"),
        r"only in A|in A alone|called once",
    ),
    Case("own loss", "benign", {"written": "own"}),
    Case("fused optimizers", "benign", {"implementation": "fused"}),
    Case("foreach optimizers", "benign", {"implementation": "foreach"}),
    Case("batch turned", "benign", {"turned": True}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("other order", "data", {"order": 1}, ("D.input*@value", "D*input*@value")),
    Case("other init", "data", {"init": 1}, ("[GD].*@value",)),
    Case("again", "equal"),
    Case("again, 2 turns", "equal", reference={"turns": 2}),
    Case("died", "incomplete", {"ends_at": 4}),
]
