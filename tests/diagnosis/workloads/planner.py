"""A planner that learns from a replay of games: walkers gather the ink of written digits."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    cut,
    digits,
)
from tests.diagnosis.workloads.planner_net import ACTIONS, Planner

_GAMES = 24
_LONGEST = 16
_UNROLLED = 5
_LARGEST = 5
_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


@dataclass(frozen=True)
class Planning(Workload):
    """A model of states is unrolled over five actions: policies, values and rewards are learnt.

    share: of the gradient that reaches a state from the dynamics behind it. ranges: over what
        states are brought between 0 and 1, each "sample" or the "batch".
    discount, ahead: of the returns, and how many rewards they hold before the search's value.
    bootstraps: the power of the discount before that value, "ahead" or "one".
    late: by how many steps rewards are taken too late.
    squashes: whether values and rewards are squashed. nearer: which atom has the larger weight of
        a two-hot target, the "near" one or the "far" one.
    masks: whether policies behind the end of a game are left out, by "product", by "index", or
        are "kept".
    balances: whether losses of unrolled states are divided by their number.
    corrects: whether samples have importance weights.
    value_weight: of the value loss. falls: the factor of the learning rate in ten steps.
    clip: of the gradients' norm. parts: micro-batches a step.
    low: whether the net runs under autocast to bfloat16.
    predicts, joins, scaling, checkpointed, returns, two_hot, entropy: other ways to write the same
        mathematics.
    """

    batch: int = 16
    lr: float = 5e-3
    adam_eps: float = 1e-5
    share: float = 0.5
    ranges: str = "sample"
    discount: float = 0.97
    ahead: int = 4
    bootstraps: str = "ahead"
    late: int = 0
    squashes: bool = True
    nearer: str = "near"
    masks: str = "product"
    balances: bool = True
    corrects: bool = True
    value_weight: float = 0.25
    falls: float = 0.1
    clip: float = 5.0
    parts: int = 1
    low: bool = False
    predicts: str = "each"
    joins: str = "cat"
    scaling: str = "detach"
    checkpointed: bool = False
    returns: str = "loop"
    two_hot: str = "scatter"
    entropy: str = "softmax"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Planner(self, 2 * _LARGEST + 1)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: self.falls ** (step / 10)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for batch in self._batches(seed):
                clear(optimizer, self)
                for part in cut(self.parts, *batch):
                    self._learn(model, *part)
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()

    def _batches(self, seed):
        """What was seen, actions, targets and weights of positions that are drawn by priority."""
        seen, actions, rewards, visits, _, lengths, priorities = _replay()
        dtype = torch.get_default_dtype()
        returns = self._returns()
        chances = priorities / priorities.sum()
        weights = (chances * (chances > 0).sum()).clamp(min=1e-9) ** -0.4
        dealing = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
        behind = torch.arange(_UNROLLED + 1)
        for step in range(self.steps):
            chosen = torch.multinomial(chances.flatten(), self.batch, generator=dealing)
            other = torch.randint(0, ACTIONS, (self.batch, _UNROLLED), generator=dealing)
            if self.turned:
                chosen, other = chosen.flip(0), other.flip(0)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            game, first = (chosen // _LONGEST)[:, None], (chosen % _LONGEST)[:, None]
            at = first + behind
            plays = at < lengths[game]
            taken = torch.where(plays[:, :-1], actions[game, at[:, :-1]], other)
            weight = weights[game, first][:, 0]
            weight = weight / weight.max() if self.corrects else torch.ones_like(weight)
            counts = visits[game, at].to(dtype)
            policies = counts / counts.sum(2, keepdim=True).clamp(min=1)
            policies = torch.where(plays[..., None], policies, 1 / ACTIONS)
            yield (
                seen[game[:, 0], first[:, 0]].to(dtype),
                taken,
                policies,
                returns[game, at],
                rewards[game, at[:, :-1] + self.late].to(dtype),
                plays.to(dtype),
                weight.to(dtype),
            )

    def _returns(self):
        """Rewards of some steps ahead, discounted, and the search's value behind them."""
        _, _, rewards, _, values, lengths, _ = _replay()
        dtype = torch.get_default_dtype()
        rewards, values = rewards.to(dtype), values.to(dtype)
        size = rewards.shape[1] - self.ahead
        last = self.discount ** (self.ahead if self.bootstraps == "ahead" else 1)
        found = last * values[:, self.ahead :]
        if self.returns == "loop":
            for step in range(self.ahead):
                found = found + self.discount**step * rewards[:, step : step + size]
        else:
            powers = self.discount ** torch.arange(rewards.shape[1], dtype=dtype)
            sums = functional.pad((powers * rewards).cumsum(1), (1, 0))
            found = found + (sums[:, self.ahead : -1] - sums[:, :size]) / powers[:size]
        return found * (torch.arange(size) < lengths[:, None])

    def _learn(self, model, seen, actions, policies, returns, rewards, plays, weight):
        """The gradients of a part."""
        returns = anchorlib.anchor(returns, "value_target")
        rewards = anchorlib.anchor(rewards, "reward_target")
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(seen, actions)
        policy, value, reward = (one.to(seen.dtype) for one in told)
        scale = torch.ones(_UNROLLED + 1, dtype=seen.dtype)
        if self.balances:
            scale[1:] /= _UNROLLED
        shares = scale * weight[:, None] / self.batch
        losses = {
            "policy_loss": self._policy(policy, policies, plays, shares),
            "value_loss": self.value_weight * self._missed(value, returns, shares),
            "reward_loss": self._missed(reward, rewards, shares[:, 1:]),
        }
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        loss.backward()

    def _policy(self, logits, policies, plays, shares):
        """The loss of actions against the search's visits."""
        costs = self._entropy(logits, policies)
        if self.masks == "index":
            chosen = plays > 0
            return (costs[chosen] * shares[chosen]).sum()
        return (costs * shares * (plays if self.masks == "product" else 1)).sum()

    def _missed(self, logits, wanted, shares):
        """The loss of numbers that are told as chances of atoms."""
        return (self._entropy(logits, self._spread(wanted)) * shares).sum()

    def _entropy(self, logits, target):
        """Cross entropies over the last axis."""
        if self.entropy == "softmax":
            return -(target * logits.log_softmax(-1)).sum(-1)
        return logits.logsumexp(-1) - (target * logits).sum(-1)

    def _spread(self, wanted):
        """Numbers, squashed, as two-hot chances of atoms."""
        if self.squashes:
            wanted = wanted.sign() * ((wanted.abs() + 1).sqrt() - 1) + 1e-3 * wanted
        wanted = wanted.clamp(-_LARGEST, _LARGEST)
        if self.two_hot == "hat":
            atoms = torch.arange(-_LARGEST, _LARGEST + 1, dtype=wanted.dtype)
            return (1 - (wanted[..., None] - atoms).abs()).clamp(min=0)
        low = wanted.floor()
        high = wanted - low
        high = high if self.nearer == "near" else 1 - high
        at = low.long()[..., None] + _LARGEST
        target = torch.zeros(*wanted.shape, 2 * _LARGEST + 1, dtype=wanted.dtype)
        target.scatter_(-1, at, 1 - high[..., None])
        return target.scatter_add_(-1, (at + 1).clamp(max=2 * _LARGEST), high[..., None])


@cache
def _replay():
    """All games: observations, actions, rewards, visits, search values, lengths and priorities.

    A walker looks at the ink that is left and at where it stands; it gathers the ink of the cell
    that it moves to. All are (game, step, ...), with zeros behind the end of a game.
    """
    drawing = torch.Generator().manual_seed(5)
    images, _ = digits()
    size = _LONGEST + 2 * _UNROLLED + 1
    seen = torch.zeros(_GAMES, size, 2, 8, 8, dtype=torch.float32)
    actions = torch.zeros(_GAMES, size, dtype=torch.long)
    rewards = torch.zeros(_GAMES, size, dtype=torch.float32)
    visits = torch.zeros(_GAMES, size, ACTIONS, dtype=torch.long)
    lengths = torch.randint(6, _LONGEST + 1, (_GAMES,), generator=drawing)
    for game, length in enumerate(lengths.tolist()):
        ink = (images[game] + 1).clone()
        row, column = torch.randint(2, 6, (2,), generator=drawing).tolist()
        for step in range(length):
            seen[game, step, 0], seen[game, step, 1, row, column] = ink, 1.0
            cells = [
                (min(max(row + down, 0), 7), min(max(column + right, 0), 7))
                for down, right in _MOVES
            ]
            hopes = torch.stack([ink[cell] for cell in cells]).softmax(0)
            counted = torch.multinomial(hopes, 16, replacement=True, generator=drawing)
            visits[game, step] = torch.bincount(counted, minlength=ACTIONS)
            actions[game, step] = counted[0]
            row, column = cells[counted[0]]
            rewards[game, step] = ink[row, column]
            ink[row, column] = 0
    left = rewards.flip(1).cumsum(1).flip(1)
    noise = torch.rand(left.shape, generator=drawing, dtype=torch.float32)
    values = left * (0.5 + 0.5 * noise)
    plays = torch.arange(_LONGEST) < lengths[:, None]
    priorities = ((left - values)[:, :_LONGEST].abs() + 0.1) ** 0.6 * plays
    return seen, actions, rewards, visits, values, lengths, priorities


_STATES = ("representation@grad", "dynamics*@grad", "representation.*@*grad")
_OUT = ("loss@*", "output*@grad")
_NUMBERS = ("value_loss@*", "reward_loss@*", *_OUT)
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements which change places."""
CASES = [
    Case(
        "gradient not halved",
        "bug",
        {"share": 1.0},
        _STATES,
        rf"\bMul|{_TIMES}|detach|\bshare\b|0\.5\b",
    ),
    Case(
        "states ranged over the batch",
        "bug",
        {"ranges": "batch"},
        ("representation@value",),
        r"\bA?m(in|ax)|\bdims?\b|\baxes\b|\bSub|\bDiv|broadcast|expand|\bshapes?\b",
    ),
    Case(
        "search value discounted once",
        "bug",
        {"bootstraps": "one"},
        ("value_target@value",),
        rf"\bMul|\bAdd(Backward|\b)|{_TIMES}|{_GIVEN}|value_target|discount",
    ),
    Case(
        "rewards one step late",
        "bug",
        {"late": 1},
        ("reward_target@value",),
        rf"{_ORDER}|{_GIVEN}|\bindex|reward_target|shift",
    ),
    Case(
        "two-hot the wrong way",
        "bug",
        {"nearer": "far"},
        _NUMBERS,
        rf"\bMul|{_ORDER}|{_GIVEN}|scatter|\bRsub|\bSub",
    ),
    Case(
        "numbers not squashed",
        "bug",
        {"squashes": False},
        _NUMBERS,
        rf"\bMul|{_GIVEN}|{_ORDER}|scatter|\bsqrt|\bsign",
    ),
    Case(
        "policies behind the end",
        "bug",
        {"masks": "kept"},
        ("policy_loss@*", *_OUT),
        rf"\bMul|\bmask|{_GIVEN}",
    ),
    Case(
        "unrolled losses not divided",
        "bug",
        {"balances": False},
        ("policy_loss@*", *_NUMBERS),
        rf"\bMul|\bDiv|{_GIVEN}|{_TIMES}",
    ),
    Case(
        "no importance weights",
        "bug",
        {"corrects": False},
        ("policy_loss@*", *_NUMBERS),
        rf"\bMul|{_GIVEN}|{_TIMES}",
    ),
    Case("rate does not fall", "bug", {"falls": 1.0}, UPDATES, r"\blr\b", step=1),
    Case("predictions at once", "benign", {"predicts": "together"}),
    Case("actions convolved apart", "benign", {"joins": "sum"}),
    Case("returns by sums", "benign", {"returns": "cumsum"}),
    Case("two-hot as a hat", "benign", {"two_hot": "hat"}),
    Case("entropy by logsumexp", "benign", {"entropy": "logsumexp"}),
    Case("two parts for one", "benign", {"parts": 2}),
    Case("positions turned", "benign", {"turned": True}),
    Case(
        "actions convolved apart, low precision",
        "benign",
        {"joins": "sum"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("*input*@value", "*_target@value")),
    Case("halved by a function", "equal", {"scaling": "function"}),
    Case("dynamics computed again", "equal", {"checkpointed": True}),
    Case("optimizer by foreach", "equal", {"implementation": "foreach"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
