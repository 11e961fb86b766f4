"""Actor and critic that name digits: advantages computed without gradients, two optimizers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload

_HIDDEN, _TIMES = 32, 4


@dataclass(frozen=True)
class Actor(Workload):
    """gamma, lam: of the advantages. normed, correction: whether and how they are normed.

    entropy: its weight, subtracted. critic_weight: of the critic's loss. tau: of the copy of the
    critic that makes the targets. clip: of the ratio. epochs: passes over one rollout.
    """

    batch: int = 32
    lr: float = 3e-3
    weight_decay: float = 0.0
    gamma: float = 0.95
    lam: float = 0.9
    normed: bool = True
    correction: int = 1
    entropy: float = 0.01
    critic_weight: float = 0.5
    tau: float = 0.1
    clip: float = 0.2
    epochs: int = 2
    reward: float = 1.0
    written: str = "torch"
    adv_eps: float = 1e-8

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            policy, critic, copy = mlp(10), mlp(1), mlp(1)
            copy.load_state_dict(critic.state_dict())
            copy.requires_grad_(False)
            optimizers = self.adam(policy.parameters()), self.adam(critic.parameters())
            session.watch(policy, tensors="*", optimizer=optimizers[0], prefix="actor")
            session.watch(critic, tensors="*", optimizer=optimizers[1], prefix="critic")
            session.watch(copy, tensors="*", prefix="copy")
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                rollout = self._rollout(policy, copy, images.flatten(1), labels)
                for _ in range(self.epochs):
                    self._epoch(policy, critic, optimizers, rollout)
                with torch.no_grad():
                    for kept, new in zip(copy.parameters(), critic.parameters(), strict=True):
                        kept.lerp_(new, self.tau)
                session.step()

    def _rollout(self, policy, copy, states, labels):
        """States by time, what was done there, its chance, advantages and returns."""
        with torch.no_grad():
            chances = policy(states).log_softmax(-1)
            done = torch.multinomial(chances.exp(), 1)[:, 0]
            rewards = (done == labels).float() * self.reward
            rewards, values = (x.view(_TIMES, -1) for x in (rewards, copy(states)[:, 0]))
            found, later = [], torch.zeros_like(values[0])
            after = torch.zeros_like(values[0])
            for reward, value in zip(rewards.flip(0), values.flip(0), strict=True):
                later = reward + self.gamma * after - value + self.gamma * self.lam * later
                after = value
                found.append(later)
            advantages = torch.stack(found[::-1])
            returns = (advantages + values).flatten()
            advantages = advantages.flatten()
            if self.normed:
                spread = advantages.std(correction=self.correction)
                advantages = (advantages - advantages.mean()) / (spread + self.adv_eps)
        return states, done, chances.gather(1, done[:, None])[:, 0], advantages, returns

    def _epoch(self, policy, critic, optimizers, rollout) -> None:
        states, done, before, advantages, returns = rollout
        chances = policy(states).log_softmax(-1)
        ratio = (chances.gather(1, done[:, None])[:, 0] - before).exp()
        held = ratio.clamp(1 - self.clip, 1 + self.clip)
        gain = torch.minimum(ratio * advantages, held * advantages).mean()
        entropy = -(chances.exp() * chances).sum(-1).mean()
        missed = critic(states)[:, 0] - returns
        square = missed.square().mean() if self.written == "torch" else (missed * missed).mean()
        of_actor, of_critic = -gain - self.entropy * entropy, self.critic_weight * square
        anchorlib.anchor(of_actor, "loss_actor")
        anchorlib.anchor(of_critic, "loss_critic")
        for optimizer, loss in zip(optimizers, (of_actor, of_critic), strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def mlp(out: int) -> nn.Sequential:
    """64 to `out`."""
    return nn.Sequential(nn.Linear(64, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, out))


_ACTOR = ("loss_actor@value", "actor.2@grad", "actor@grad", "actor.output@grad")
_CRITIC = ("loss_critic@value", "critic.2@grad", "critic@grad")
_BOTH = (*_ACTOR, *_CRITIC)
CASES = [
    # No record holds returns or advantages: what an answer can tell of them is the critic's target,
    # and how the factor of the ratio is spread.
    Case("gamma", "bug", {"gamma": 0.99}, _BOTH, r"gamma|0\.99|target differs"),
    Case("lambda", "bug", {"lam": 0.95}, _BOTH, r"0\.95|target differs"),
    Case(
        "biased spread",
        "bug",
        {"correction": 0},
        _ACTOR,
        r"correction|is [\d.]+ times A|std 0\.984\) \| .* std 1\)",
    ),
    Case("advantages not normed", "bug", {"normed": False}, _ACTOR, r"\bstd\b|is [\d.]+ times A"),
    Case("entropy's sign", "bug", {"entropy": -0.01}, _ACTOR, r"-0\.01|entropy"),
    Case("ratio's clip", "bug", {"clip": 0.02}, _ACTOR, r"clamp.*0\.\d|clip.*0\.02", step=None),
    Case(
        "critic's weight", "bug", {"critic_weight": 1.0}, _CRITIC, r"is 2(\.0)? times A|Mul.*0\.5"
    ),
    # The optimizers count the steps until the first session.step(), which ends step 2: the copy
    # that moved is first used in step 3.
    Case("copy's tau", "bug", {"tau": 0.2}, ("copy.*@value",), r"is [\d.]+ times A|lerp", step=3),
    Case("reward", "bug", {"reward": 2.0}, _BOTH, r"is 2(\.0)? times A|target differs"),
    Case("learning rate", "bug", {"lr": 1e-3}, UPDATES, r"\blr\b"),
    Case("own square", "benign", {"written": "own"}),
    Case("fused optimizers", "benign", {"implementation": "fused"}),
    Case("foreach optimizers", "benign", {"implementation": "foreach"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("eps of the norm", "benign", {"adv_eps": 1e-9}),
    Case("other init", "data", {"init": 1}, ("*@value",)),
    Case("other order", "data", {"order": 1}, ("*input*@value",)),
    Case("again", "equal"),
    Case("again, 1 epoch", "equal", reference={"epochs": 1}),
]
