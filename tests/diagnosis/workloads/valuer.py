"""Q-learning that names digits: a ring of what was done, a renewed copy, a double choice."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut

_HIDDEN, _ACTIONS, _RING = 32, 10, 96


@dataclass(frozen=True)
class Valuer(Workload):
    """A state is an image, the one after it the next of the batch; right names are rewarded.

    gamma, far: the discount, and after how many steps a value is taken. most: of a reward.
    ends: whether nothing follows an end. chooses, evaluates: the "model" or the "copy": which one
        chooses what is done next, and which one says what it is worth.
    detaches: whether no gradient goes through what is wanted. taken: the action whose value is
        learnt, the one that was "done" or the "next" one. axis: of the advantages' mean.
    every, late: how often the copy is renewed, and how many steps late; tau: how much of it.
    beta: of the loss. parts: micro-batches a step. part_scale: what each loss is divided by, 0:
        rightly. forgets: gradients, once a "step" or a "part".
    trains: whether it returns to training when it has acted. halves: how often a state is halved.
        behind: the places by which the ring is written late. gain: of the advantages' weights.
    loss, sums, discounts, picks: how it is written, of one mathematics.
    """

    steps: int = 8
    batch: int = 24
    lr: float = 4e-3
    weight_decay: float = 0.0
    decoupled: bool = False
    gamma: float = 0.9
    far: int = 2
    most: float = 2.0
    ends: bool = True
    chooses: str = "model"
    evaluates: str = "copy"
    detaches: bool = True
    taken: str = "done"
    axis: int = 1
    every: int = 2
    late: int = 0
    tau: float = 1.0
    beta: float = 1.0
    clip: float = 0.5
    parts: int = 1
    part_scale: int = 0
    forgets: str = "step"
    dropout: float = 0.0
    trains: bool = True
    halves: int = 1
    behind: int = 0
    gain: float = 1.0
    loss: str = "torch"
    sums: str = "advantage first"
    discounts: str = "at once"
    picks: str = "gather"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            kept = copy.deepcopy(model).requires_grad_(False).eval()
            optimizer = self.adam(model.parameters())
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(kept, tensors="*", prefix="copy")
            torch.manual_seed(seed)
            ring, at = None, self.behind
            for step, (images, labels) in enumerate(self.images(seed)):
                seen = self._acted(model, images.flatten(1), labels)
                ring, at = _written(ring, at, seen)
                chosen = torch.randint(0, min((step + 1) * self.batch, _RING), (self.batch,))
                clear(optimizer, self)
                for part in cut(self.parts, *(column[chosen] for column in ring)):
                    if self.forgets == "part":
                        clear(optimizer, self)
                    loss = self._loss(model, kept, *part) / (self.part_scale or self.parts)
                    anchorlib.anchor(loss, "loss")
                    loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                if (step + 1 - self.late) % self.every == 0:
                    self._renewed(kept, model)

    def _acted(self, model, states, labels):
        """States, what was done there, rewards, the states after them, and where it ended."""
        model.eval()
        with torch.no_grad():
            best = model(states).argmax(1)
        if self.trains:
            model.train()
        explores = torch.rand(len(states)) < 0.5
        done = torch.where(explores, torch.randint(0, _ACTIONS, best.shape), best)
        later = labels.roll(-1)
        rewards = 3.0 * (done == labels) + self.gamma * (done == later) - 0.1
        return states, done, rewards.clamp(max=self.most), states.roll(-1, 0), labels % 3 == 0

    def _loss(self, model, kept, states, done, rewards, after, ended):
        values = model(states)
        with torch.set_grad_enabled(not self.detaches):
            choice = (model if self.chooses == "model" else kept)(after).argmax(1)
            worth = self._picked((model if self.evaluates == "model" else kept)(after), choice)
            if self.discounts == "at once":
                worth = self.gamma**self.far * worth
            else:
                worth = self.gamma * (self.gamma * worth)
            worth = worth * ~ended if self.ends else worth
            wanted = rewards + worth
        told = self._picked(values, done if self.taken == "done" else choice)
        if self.loss == "torch":
            return functional.smooth_l1_loss(told, wanted, beta=self.beta)
        missed = (told - wanted).abs()
        beyond = torch.relu(missed - self.beta)
        return ((missed.square() - beyond.square()) / (2 * self.beta)).mean()

    def _picked(self, values, at):
        if self.picks == "gather":
            return values.gather(1, at[:, None])[:, 0]
        return (values * functional.one_hot(at, _ACTIONS)).sum(1)

    @torch.no_grad()
    def _renewed(self, kept, model):
        for one, new in zip(kept.parameters(), model.parameters(), strict=True):
            one.lerp_(new, self.tau)


class Net(nn.Module):
    """A state's value, and what each action is better than the mean of all."""

    def __init__(self, how: Valuer) -> None:
        super().__init__()
        self.how = how
        self.enter, self.norm = nn.Linear(64, _HIDDEN), nn.LayerNorm(_HIDDEN)
        self.act, self.drop = nn.ReLU(), nn.Dropout(how.dropout)
        self.value, self.advantage = nn.Linear(_HIDDEN, 1), nn.Linear(_HIDDEN, _ACTIONS)
        with torch.no_grad():
            self.advantage.weight.mul_(how.gain)

    def forward(self, states):
        """The value of each action."""
        how = self.how
        h = self.drop(self.act(self.norm(self.enter(states * 0.5**how.halves))))
        value, advantage = self.value(h), self.advantage(h)
        mean = advantage.mean(how.axis, keepdim=True)
        if how.sums == "advantage first":
            return value + (advantage - mean)
        return value + advantage - mean


def _written(ring, at: int, seen):
    """The ring with what was seen in it, and the place behind that."""
    if ring is None:
        ring = [x.new_zeros(_RING, *x.shape[1:]) for x in seen]
    places = (at + torch.arange(len(seen[0]))) % _RING
    for column, new in zip(ring, seen, strict=True):
        column[places] = new
    return ring, at + len(places)


_LOSS = ("loss@*", "output@grad", "value@grad", "advantage@grad")
_COPY = ("copy.*@value",)
CASES = [
    Case("discounted once", "bug", {"far": 1}, _LOSS, r"0\.81|0\.9\b|\bMul|\bmul\b|discount"),
    Case("rewards cut", "bug", {"most": 1.0}, _LOSS, r"[Cc]lamp|\bmax\b|reward"),
    Case("ends forgotten", "bug", {"ends": False}, _LOSS, r"\bMul|\bmul\b|ended|\bdone\b|\bmask\b"),
    Case(
        "copy chooses",
        "bug",
        {"chooses": "copy"},
        (*_LOSS, *_COPY),
        r"[Aa]rgmax|called|copy.{0,60}(twice|only|alone)|(only|alone).{0,60}copy",
    ),
    Case(
        "copy not asked",
        "bug",
        {"evaluates": "model"},
        (*_LOSS, *_COPY),
        r"called|copy.{0,60}(only|alone)|(only|alone).{0,60}copy",
    ),
    Case(
        "gradients through what is wanted",
        "bug",
        {"detaches": False},
        ("*@grad", "*@pass_grad"),
        r"detach|(only|alone) in B|in B alone|called",
        reference={"evaluates": "model"},
    ),
    Case("value of the next action", "bug", {"taken": "next"}, _LOSS, r"[Gg]ather|[Ii]ndex"),
    Case(
        "mean over the batch",
        "bug",
        {"axis": 0},
        ("output@value",),
        r"\bdim\b|\brows\b|\bMean",
    ),
    Case(
        "copied a step late",
        "bug",
        {"late": 1},
        _COPY,
        r"\bmove|\bcop(y|ied) (is|of|from)|unchanged|\bstay",
    ),
    Case(
        "copied every third step",
        "bug",
        {"every": 3},
        _COPY,
        r"\bmove|\bcop(y|ied) (is|of|from)|unchanged|\bstay",
    ),
    Case(
        "copy follows softly",
        "bug",
        {"every": 1, "tau": 0.1},
        _COPY,
        r"lerp|is [\d.]+ times A|\bmove",
    ),
    Case("beta of the loss", "bug", {"beta": 0.1}, _LOSS, r"\bbeta\b"),
    Case(
        "forgotten between micro-batches",
        "bug",
        {"forgets": "part"},
        ("*@grad",),
        r"zero_grad|micro",
        reference={"parts": 2},
    ),
    Case(
        "divided twice",
        "bug",
        {"part_scale": 4},
        _LOSS,
        r"is 0\.50* times A|\bDiv\w* .*[24]",
        reference={"parts": 2},
    ),
    Case(
        "stays in eval mode",
        "bug",
        {"trains": False},
        ("drop@value", "input*@value", "enter@value", "output@value"),
        r"eval mode",
        reference={"dropout": 0.2},
    ),
    Case(
        "states halved twice",
        "bug",
        {"halves": 2},
        ("enter@value",),
        r"is 0?\.\d+ times A|Mul|0\.25",
    ),
    Case("adam eps", "bug", {"adam_eps": 1.5e-4}, UPDATES, r"\beps\b.*(1\.5e-0?4|0\.00015)"),
    Case("own loss", "benign", {"loss": "own"}),
    Case("value first", "benign", {"sums": "value first"}),
    Case("discounted in turn", "benign", {"discounts": "in turn"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("fused optimizer", "benign", {"implementation": "fused"}),
    Case("foreach optimizer", "benign", {"implementation": "foreach"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("ring written late", "data", {"behind": 1}, ("input*@value",)),
    # A product's gradient has -0.0 where an index's has 0.0; all else has equal bits.
    Case("picked by a product", "benign", {"picks": "product"}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("smaller advantages", "data", {"gain": 0.1}, ("*advantage.weight@value",)),
    Case("again", "equal"),
    Case("again, with dropout", "equal", reference={"dropout": 0.2}),
    Case("died", "incomplete", {"ends_at": 5}),
]
