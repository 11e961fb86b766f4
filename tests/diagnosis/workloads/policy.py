"""PPO: a squashed Gaussian pushes digits' pixels to zero; a rollout, then epochs over its parts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut

_STATE, _ACTIONS, _HIDDEN, _LONG, _EPS = 6, 2, 32, 8, 1e-6
_HALF_LOG = math.log(2 * math.pi) / 2


@dataclass(frozen=True)
class Policy(Workload):
    """Each step is a rollout of 8 moves in as many worlds as the batch has images.

    gamma, lam: of the advantages. ends: whether nothing follows an end. follows: what follows the
        last move, its "value" or "nothing". late: whether a move's own value stands for the next.
    normed: the samples that advantages are normed over, of a "part", of "all" parts or of "none".
    over: what chances are a ratio over, those of the "old" policy or the "new" one. old: whether
        old chances are "kept" or computed "anew". clip, takes: of ratios, the "least" or "most".
    entropy, worth: the weights of the entropy and of the values' loss.
    joins: whether the logarithms of an action's chances are added up, "sum" or "mean".
    squashes: whether they count the squashing. spread: whether it is trained.
    watches: when what is seen is counted for its norm, in a "rollout", "always" or "never".
    alone: whether the value's gradient stops at its head. counted: the samples seen beforehand.
    anneals: the rate's last part, in rollouts. max_norm: that gradients are clipped to.
    forgets: gradients, each "part" or "epoch".
    chances, ratio, sums, bends, loss, square, layers, spreads: how it is written, of one
        mathematics.
    """

    steps: int = 2
    batch: int = 8
    lr: float = 5e-3
    adam_eps: float = 1e-5
    weight_decay: float = 0.0
    decoupled: bool = False
    gamma: float = 0.97
    lam: float = 0.9
    ends: bool = True
    follows: str = "value"
    late: bool = False
    normed: str = "part"
    correction: int = 1
    over: str = "old"
    old: str = "kept"
    clip: float = 0.2
    takes: str = "least"
    entropy: float = 0.01
    worth: float = 0.5
    joins: str = "sum"
    squashes: bool = True
    spread: str = "trained"
    watches: str = "rollout"
    alone: bool = False
    counted: float = 1.0
    anneals: int = 4
    max_norm: float = 0.5
    forgets: str = "part"
    epochs: int = 2
    parts: int = 1
    chances: str = "own"
    ratio: str = "difference"
    sums: str = "loop"
    bends: str = "log"
    loss: str = "least"
    square: str = "torch"
    layers: str = "torch"
    spreads: str = "torch"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            agent = Agent(self)
            optimizer = self.adam(agent.parameters())
            session.watch(agent, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for number, (images, _) in enumerate(self.images(seed)):
                optimizer.param_groups[0]["lr"] = self.lr * (1 - number / self.anneals)
                rollout = self._rollout(agent, images.flatten(1)[:, 26 : 26 + _STATE])
                for _ in range(self.epochs):
                    self._epoch(agent, optimizer, rollout)

    @torch.no_grad()
    def _rollout(self, agent, first):
        """What was seen and done, its chances, advantages and what values should be."""
        push = torch.linspace(-1, 1, _STATE * _ACTIONS).view(_ACTIONS, _STATE)
        state, seen = first, []
        for _ in range(_LONG):
            if self.watches != "never":
                agent.norm.count(state)
            action, chance, _, value = agent(state)
            after = 0.9 * state + 0.3 * action.tanh() @ push + 0.05 * torch.randn_like(state)
            ended = after[:, 0].abs() > 0.8
            seen.append((state, action, chance, value, -after.square().mean(1), ended))
            state = torch.where(ended[:, None], first, after)
        states, actions, chances, values, rewards, ended = map(torch.stack, zip(*seen, strict=True))
        last = agent(state)[3]
        last = last if self.follows == "value" else torch.zeros_like(last)
        goes_on = (~ended).to(values.dtype) if self.ends else torch.ones_like(values)
        next_values = torch.cat((values[1:], last[None])) if not self.late else values
        missed = rewards + self.gamma * goes_on * next_values - values
        advantages = self._advantages(missed, self.gamma * self.lam * goes_on)
        anchorlib.anchor(advantages, "advantages")
        wanted = advantages + values
        if self.normed == "all":
            advantages = self._norm(advantages)
        return [x.flatten(0, 1) for x in (states, actions, chances, advantages, wanted)]

    def _advantages(self, missed, factors):
        """Each move's, of what was missed then and later, the later the less."""
        if self.sums == "loop":
            found, later = [], torch.zeros_like(missed[0])
            for one, factor in zip(missed.flip(0), factors.flip(0), strict=True):
                later = one + factor * later
                found.append(later)
            return torch.stack(found[::-1])
        found = []
        for at in range(_LONG):
            weights = torch.cat((torch.ones_like(missed[:1]), factors[at:-1].cumprod(0)))
            found.append((weights * missed[at:]).sum(0))
        return torch.stack(found)

    def _norm(self, advantages):
        missed = advantages - advantages.mean()
        if self.spreads == "squares":
            spread = (missed.square().sum() / (len(missed) - self.correction)).sqrt()
        else:
            spread = advantages.std(correction=self.correction)
        return missed / (spread + 1e-8)

    def _epoch(self, agent, optimizer, rollout):
        order = torch.randperm(len(rollout[0]))
        for turn, chosen in enumerate(order.chunk(2)):
            states, actions, chances, advantages, wanted = (x[chosen] for x in rollout)
            if self.normed == "part":
                advantages = self._norm(advantages)
            if self.forgets == "part" or turn == 0:
                clear(optimizer, self)
            for part in cut(self.parts, states, actions, chances, advantages, wanted):
                loss = self._loss(agent, *part) / self.parts
                anchorlib.anchor(loss, "loss")
                loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), self.max_norm)
            optimizer.step()

    def _loss(self, agent, states, actions, before, advantages, wanted):
        if self.watches == "always":
            agent.norm.count(states)
        _, chances, entropy, values = agent(states, actions)
        before = chances.detach() if self.old == "anew" else before
        ratio = self._ratio(chances, before)
        held = ratio.clamp(1 - self.clip, 1 + self.clip)
        if self.loss == "least":
            pick = torch.minimum if self.takes == "least" else torch.maximum
            lost = -pick(ratio * advantages, held * advantages).mean()
        else:
            lost = torch.maximum(-advantages * ratio, -advantages * held).mean()
        if self.square == "torch":
            square = functional.mse_loss(values, wanted)
        else:
            missed = values - wanted
            square = missed @ missed / len(missed)
        return lost - self.entropy * entropy.mean() + self.worth * square

    def _ratio(self, chances, before):
        if self.over == "new":
            return (before - chances).exp()
        if self.ratio == "difference":
            return (chances - before).exp()
        return chances.exp() / before.exp()


class Norm(nn.Module):
    """What is seen, normed by what was seen so far."""

    def __init__(self, how: Policy) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(_STATE))
        self.register_buffer("variance", torch.ones(_STATE))
        self.register_buffer("seen", torch.tensor(how.counted))

    @torch.no_grad()
    def count(self, x):
        """See more."""
        total = self.seen + len(x)
        missed = x.mean(0) - self.mean
        square = missed.square() * self.seen * len(x) / total
        moments = self.variance * self.seen + x.var(0, correction=0) * len(x) + square
        self.mean.add_(missed * len(x) / total)
        self.variance.copy_(moments / total)
        self.seen.copy_(total)

    def forward(self, x):
        """x, normed and held."""
        return ((x - self.mean) / (self.variance + 1e-8).sqrt()).clamp(-5, 5)


class Layer(nn.Linear):
    """A linear layer, torch's or as einsum."""

    way = "torch"

    def forward(self, x):
        """The layer's output."""
        if self.way == "torch":
            return super().forward(x)
        return torch.einsum("oi,bi->bo", self.weight, x) + self.bias


class Agent(nn.Module):
    """A policy and its values, with one trunk."""

    def __init__(self, how: Policy) -> None:
        super().__init__()
        self.how = how
        self.norm = Norm(how)
        self.trunk = nn.Sequential(
            Layer(_STATE, _HIDDEN), nn.Tanh(), Layer(_HIDDEN, _HIDDEN), nn.Tanh()
        )
        self.mean, self.value = Layer(_HIDDEN, _ACTIONS), Layer(_HIDDEN, 1)
        for layer in (self.trunk[0], self.trunk[2], self.mean, self.value):
            layer.way = how.layers
        self.log_spread = nn.Parameter(torch.full((_ACTIONS,), -0.5))
        for layer, gain in ((self.trunk[0], 1.4), (self.trunk[2], 1.4), (self.mean, 0.1)):
            nn.init.orthogonal_(layer.weight, gain)

    def forward(self, states, actions=None):
        """Actions, the logarithms of their chances, the entropy, and values."""
        how = self.how
        h = self.trunk(self.norm(states))
        mean, value = self.mean(h), self.value(h.detach() if how.alone else h)[:, 0]
        log_spread = self.log_spread if how.spread == "trained" else self.log_spread.detach()
        log_spread = log_spread.expand_as(mean)
        if actions is None:
            actions = mean + log_spread.exp() * torch.randn_like(mean)
        if how.chances == "own":
            far = (actions - mean) / log_spread.exp()
            chances = -far.square() / 2 - log_spread - _HALF_LOG
            entropy = (log_spread + 0.5 + _HALF_LOG).sum(1)
        else:
            normal = torch.distributions.Normal(mean, log_spread.exp())
            chances, entropy = normal.log_prob(actions), normal.entropy().sum(1)
        if how.squashes:
            chances = chances - self._bent(actions)
        return actions, chances.sum(1) if how.joins == "sum" else chances.mean(1), entropy, value

    def _bent(self, actions):
        if self.how.bends == "log":
            return (1 - actions.tanh().square() + _EPS).log()
        return torch.log1p(_EPS - actions.tanh().square())


_LOSS = ("loss@*", "output:1@grad", "output:3@grad", "output:2@grad")
_ADVANTAGES = ("advantages@value",)
_CHANCES = ("output:1@value",)
_TIMES = r"is -?[\d.]+ times A"
CASES = [
    Case("gamma", "bug", {"gamma": 0.9}, _ADVANTAGES, r"gamma|\b0\.9\b|\b0\.81\b"),
    Case("lambda", "bug", {"lam": 1.0}, _ADVANTAGES, r"\blam|\b0\.9?7?\b.*\b0\.87\d*|\b0\.87\d*"),
    Case(
        "ends forgotten",
        "bug",
        {"ends": False},
        _ADVANTAGES,
        r"\bMul|\bmul\b|ended|\bdone\b|\bmask\b|ones_like|\bSub\b|\brsub\b",
    ),
    Case(
        "nothing follows the last move",
        "bug",
        {"follows": "nothing"},
        _ADVANTAGES,
        r"zeros?\b|zeros_like|\b[Cc]at|last|\brows?\b|another term|output:3",
    ),
    Case(
        "own value for the next",
        "bug",
        {"late": True},
        _ADVANTAGES,
        r"\b[Cc]at|[Ss]lice|shift|moved by|\brows\b",
    ),
    Case(
        "advantages not normed",
        "bug",
        {"normed": "none"},
        _LOSS,
        r"\b[Ss]td|\bDiv|\bdiv\b|\bSub|\bsub\b|spread",
    ),
    Case(
        "advantages normed over all",
        "bug",
        {"normed": "all"},
        _LOSS,
        r"\b[Ss]td|\bDiv|\bdiv\b|\b[Mm]ean(Backward|\b)|spread",
    ),
    Case(
        "biased spread",
        "bug",
        {"correction": 0},
        _LOSS,
        rf"correction|\bstd\b|spread|{_TIMES}",
    ),
    Case(
        "ratio upside down",
        "bug",
        {"over": "new"},
        _LOSS,
        r"is -[\d.]+ times A|\bNeg|\bneg\b|\bSub|\bsub\b|\bsigns?\b|exchang|swap|self.{0,60}other",
    ),
    Case(
        "old chances computed anew",
        "bug",
        {"old": "anew"},
        _LOSS,
        r"\bSub|\bsub\b|\b[Dd]etach|\b[Ee]xp(Backward|\b)|output:1",
    ),
    Case(
        "ratio's clip",
        "bug",
        {"clip": 0.02},
        _LOSS,
        r"[Cc]lamp|clip.*0\.02|\b0\.98\b|\b1\.02\b|\bmin\b|\bmax\b",
    ),
    Case(
        "most for least",
        "bug",
        {"takes": "most"},
        _LOSS,
        r"[Mm]inimum|[Mm]aximum",
    ),
    Case(
        "entropy's sign",
        "bug",
        {"entropy": -0.01},
        _LOSS,
        r"-0\.01|\bSub|\bAdd(Backward|\b)|\balpha\b|\bsigns?\b|is -1(\.0)? times A|\bNeg",
    ),
    Case("weight of values", "bug", {"worth": 1.0}, _LOSS, rf"{_TIMES}|\b0\.5\b|\bMul|\bmul\b"),
    Case(
        "mean of an action's chances",
        "bug",
        {"joins": "mean"},
        _CHANCES,
        rf"\b[Mm]ean(Backward|\b)|\b[Ss]um(Backward|\b)|{_TIMES}",
    ),
    Case(
        "squashing forgotten",
        "bug",
        {"squashes": False},
        _CHANCES,
        r"[Tt]anh|\b[Ll]og\b|LogBackward|\bSub|\bsub\b",
    ),
    Case(
        "spread not trained",
        "bug",
        {"spread": "kept"},
        ("log_spread@*", "output:2@grad"),
        r"detach|log_spread.{0,80}(only|alone)|(only|alone).{0,80}log_spread|requires_grad",
    ),
    Case(
        "norm counts in training too",
        "bug",
        {"watches": "always"},
        ("norm.*@value",),
        r"\bmoved?\b|\bbuffers?\b|written|running|changed|twice",
    ),
    Case(
        "value's gradient stops",
        "bug",
        {"alone": True},
        ("trunk*@grad", "trunk*@pass_grad"),
        r"detach|\bvalue\b.{0,80}(only|alone)|(only|alone).{0,80}\bvalue\b",
    ),
    Case("rate annealed to its end", "bug", {"anneals": 2}, UPDATES, r"\blr\b", step=4),
    Case("norm of gradients", "bug", {"max_norm": 5.0}, ("*@grad",), rf"clip|{_TIMES}"),
    Case(
        "gradients forgotten once an epoch",
        "bug",
        {"forgets": "epoch"},
        ("*@grad",),
        r"zero_grad",
        step=1,
    ),
    Case("adam eps", "bug", {"adam_eps": 1e-8}, UPDATES, r"\beps\b.*1e-0?[58]"),
    Case("chances by torch", "benign", {"chances": "torch"}),
    Case("ratio of chances", "benign", {"ratio": "quotient"}),
    Case("advantages by products", "benign", {"sums": "products"}),
    Case("squashing by log1p", "benign", {"bends": "log1p"}),
    Case("square by a product", "benign", {"square": "own"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("fused optimizer", "benign", {"implementation": "fused"}),
    Case("layers by einsum", "benign", {"layers": "einsum"}),
    Case("spread by squares", "benign", {"spreads": "squares"}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("norm begins with less", "data", {"counted": 1e-4}, ("norm.*@value",)),
    Case("again", "equal"),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("again, 1 epoch", "equal", reference={"epochs": 1}),
    Case("most of what is lost", "equal", {"loss": "most"}),
    Case("died", "incomplete", {"ends_at": 1}),
]
