"""A contextual bandit that learns from logged rounds: two reward models, and a policy by them."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.bandit_net import ACTIONS, LOGGED, Bandit, logged, masked
from tests.diagnosis.workloads.base import UPDATES, Case, EndedError, Start, Workload, clear


@dataclass(frozen=True)
class Logged(Workload):
    """Rounds are dealt again from a log; the policy climbs their doubly robust value.

    explore: the share of any action that the older policy's propensities are told with.
    masks: whether actions that were not on offer have no chance.
    ratio: what importance weights are, "policy" over the older one or "logger" over the new one.
    clips: whether weights are clipped from "above" or "below", at cap.
    folds: whose rewards a round's value takes, those learnt of the "other" fold or of its "own".
    values: whether rewards in the value are "detached" or "attached".
    bonus: of the entropy, which falls from step to step; its sign.
    penalty: of the values' spread. plateau: what the evaluated value should become, "max" or "min".
    slow: the factor of the policy's learning rate. dropout: of the reward models.
    clip: of the gradients' norm. low: whether the nets run under autocast to bfloat16.
    heads: how an action's heads are joined, "columns", as a "product", or "stacked" and viewed.
    mixes, chances, weighing, robust, spread, picks: other ways to write the same mathematics.
    """

    batch: int = 32
    lr: float = 1e-1
    betas: tuple[float, float] = (0.9, 0.95)
    explore: float = 0.2
    masks: bool = True
    ratio: str = "policy"
    clips: str = "above"
    cap: float = 3.0
    folds: str = "other"
    values: str = "detached"
    bonus: float = 0.1
    penalty: float = 0.5
    plateau: str = "max"
    slow: float = 0.5
    dropout: float = 0.1
    clip: float = 1.0
    low: bool = False
    heads: str = "columns"
    mixes: str = "sum"
    chances: str = "torch"
    weighing: str = "ratios"
    robust: str = "residual"
    spread: str = "std"
    picks: str = "gather"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Bandit(self)
            rounds, held = logged(seed)
            optimizer = self._optimizer(model)
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, self.plateau, factor=0.5, patience=0
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, chosen in enumerate(self._dealt(seed)):
                if step % 2 == 0:
                    schedule.step(self._evaluate(model, held))
                clear(optimizer, self)
                reward_loss, policy_loss = self._losses(model, rounds.at(chosen), step)
                (reward_loss + policy_loss).backward()
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()

    def _optimizer(self, model):
        """RAdam; the policy goes slower than what it is taught by."""
        groups = [
            {"params": list(model.rewards.parameters())},
            {"params": list(model.policy.parameters()), "lr": self.lr * self.slow},
        ]
        return torch.optim.RAdam(
            groups,
            self.lr,
            self.betas,
            weight_decay=self.weight_decay,
            decoupled_weight_decay=self.decoupled,
            foreach=self.implementation == "foreach",
        )

    def _dealt(self, seed):
        """Which rounds each step learns from."""
        dealing = torch.Generator().manual_seed(59 + 1000 * seed + self.order)
        for step in range(self.steps):
            chosen = torch.randint(0, LOGGED, (self.batch,), generator=dealing)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield chosen.flip(0) if self.turned else chosen

    def _told(self, model, rounds):
        """Logits, rewards and propensities of all actions."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(rounds.contexts, rounds.offered)
        logits, rewards, logging = (one.to(rounds.rewards.dtype) for one in told)
        return masked(logits, rounds.offered) if self.masks else logits, rewards, logging

    @torch.no_grad()
    def _evaluate(self, model, held):
        """The doubly robust value of the policy, of rounds that are not learnt from."""
        model.eval()
        logits, rewards, logging = self._told(model, held)
        chances, taken, _ = self._chances(logits, held.actions)
        weights = self._weights(taken, self._picked(logging, held.actions))
        value = self._values(chances, weights, rewards.mean(1), held).mean()
        model.train()
        return anchorlib.anchor(value, "value")

    def _losses(self, model, rounds, step):
        """The losses of the reward models and of the policy."""
        logits, rewards, logging = self._told(model, rounds)
        chances, taken, entropy = self._chances(logits, rounds.actions)
        weights = self._weights(taken, self._picked(logging, rounds.actions))
        weights = anchorlib.anchor(weights, "weights")
        at = torch.arange(len(logits))
        own, other = rewards[at, rounds.folds], rewards[at, 1 - rounds.folds]
        missed = self._picked(own, rounds.actions) - rounds.rewards
        reward_loss = anchorlib.anchor((weights.detach() * missed.square()).mean(), "reward_loss")
        judge = other if self.folds == "other" else own
        judge = judge.detach() if self.values == "detached" else judge
        values = anchorlib.anchor(self._values(chances, weights, judge, rounds), "values")
        entropy = anchorlib.anchor(entropy.mean(), "entropy")
        risk = self.penalty * self._spread(values) / math.sqrt(len(values))
        policy_loss = risk - values.mean() - self.bonus * (1 - step / self.steps) * entropy
        return reward_loss, anchorlib.anchor(policy_loss, "policy_loss")

    def _chances(self, logits, actions):
        """The policy's probabilities, the logarithm of that of what was done, and entropies."""
        if self.chances == "torch":
            policy = Categorical(logits=logits)
            return policy.probs, policy.log_prob(actions), policy.entropy()
        total, chances = logits.logsumexp(1), logits.softmax(1)
        return chances, self._picked(logits, actions) - total, total - (chances * logits).sum(1)

    def _picked(self, told, actions):
        """Of each round, what is told of the action that was taken."""
        if self.picks == "gather":
            return told.gather(1, actions[:, None])[:, 0]
        return (told * functional.one_hot(actions, ACTIONS)).sum(1)

    def _weights(self, taken, propensities):
        """Importance weights, clipped and normalized by themselves."""
        far = taken - propensities.log()
        if self.weighing == "softmax":
            return far.clamp(max=math.log(self.cap)).softmax(0) * len(far)
        ratios = far.exp() if self.ratio == "policy" else far.neg().exp()
        bound = {"max" if self.clips == "above" else "min": self.cap}
        ratios = ratios.clamp(**bound)
        return ratios / ratios.mean()

    def _values(self, chances, weights, judge, rounds):
        """What the policy would earn: what is told of it, and what was missed where it was seen."""
        if self.robust == "residual":
            missed = rounds.rewards - self._picked(judge, rounds.actions)
            return (chances * judge).sum(1) + weights * missed
        seen = functional.one_hot(rounds.actions, ACTIONS) * weights[:, None]
        return weights * rounds.rewards + torch.einsum("ra,ra->r", chances - seen, judge)

    def _spread(self, values):
        """The standard deviation."""
        if self.spread == "std":
            return values.std()
        count = len(values)
        narrow = values.square().mean() - values.mean().square()
        return (narrow * (count / (count - 1))).sqrt()


_WEIGHTS = ("weights@value", "value@value")
_POLICY = ("policy_loss@*", "output@grad", "policy@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES = [
    Case(
        "propensities without exploration",
        "bug",
        {"explore": 0.0},
        ("logger@value",),
        r"\bexplore|\bMul|\bAdd(Backward|\b)",
    ),
    Case(
        "actions not on offer not masked",
        "bug",
        {"masks": False},
        (*_WEIGHTS, "entropy@value"),
        r"\bmask",
    ),
    Case(
        "ratio of policies upside down",
        "bug",
        {"ratio": "logger"},
        _WEIGHTS,
        rf"\bNeg|\bSub(Backward|\b)|\bExp(Backward|\b)|other sign|reciprocal|{_GIVEN}",
    ),
    Case(
        "weights clipped from below",
        "bug",
        {"clips": "below"},
        _WEIGHTS,
        r"\bclamp|\bclips?\b|\bmin\b|\bmax\b",
    ),
    Case(
        "heads stacked, then viewed as columns",
        "bug",
        {"heads": "stacked"},
        ("rewards.0@value", "rewards.1@value"),
        rf"\b[Cc]at(Backward|\b)|\bdim\b|\bview|reshape|transpose|{_ORDER}",
    ),
    Case(
        "rewards of a round's own fold",
        "bug",
        {"folds": "own"},
        ("values@value", "policy_loss@value"),
        rf"\bIndex|indices|\bgather|{_GIVEN}|{_ORDER}|computes it from",
    ),
    Case(
        "rewards in the value not detached",
        "bug",
        {"values": "attached"},
        ("output:1@grad", "rewards.*@*grad"),
        r"detach|gradients come back",
    ),
    Case(
        "entropy of the other sign",
        "bug",
        {"bonus": -0.1},
        (*_POLICY, "entropy@grad"),
        rf"\bSub(Backward|\b)|\bAdd(Backward|\b)|\bMul|other sign|\balpha\b|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "plateau of a value that should fall",
        "bug",
        {"plateau": "min"},
        UPDATES,
        r"\blr\b|plateau",
        step=2,
    ),
    Case("heads in one product", "benign", {"heads": "product"}),
    Case("chances without a distribution", "benign", {"chances": "own"}),
    Case("weights as a softmax of logarithms", "benign", {"weighing": "softmax"}),
    Case("doubly robust value rearranged", "benign", {"robust": "product"}),
    Case("exploration by lerp", "benign", {"mixes": "lerp"}),
    Case("spread by moments", "benign", {"spread": "moments"}),
    Case("rounds turned", "benign", {"turned": True}, reference={"dropout": 0.0}),
    Case(
        "rounds turned, low precision",
        "benign",
        {"turned": True},
        reference={"dropout": 0.0, "low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("logged actions by one-hot", "equal", {"picks": "one-hot"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
