"""A generative flow network that inks cells in proportion to a reward, by trajectory balance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut, digits
from tests.diagnosis.workloads.gflow_net import CELLS, LONGEST, STOP, Energy, FlowNet, forward_mask

_ROLLED = 16
"""Trajectories that are sampled forward at each step."""
_FEWEST = 3
"""How many cells are inked at least."""


@dataclass(frozen=True)
class GFlow(Workload):
    """Trajectories are sampled forward with exploration, and backward from digits.

    z_lr: the rate of the log partition. clip: the norm of gradients of the policies at most.
    least: inked cells from which on stopping is allowed. epsilon: the share of uniform actions at
        first. anneals: whether it halves at each step. temperature: what energies are divided by.
    halves: whether each coupling counts once. explored: whether the loss is of the probabilities
        that actions were sampled by. stops: whether the action to stop is in the sum. parents: the
        state that backward probabilities are taken at, the one "after" an action or "before".
    flows: whether backward probabilities have gradients. sums: of logarithms over a trajectory;
        else their mean. parts: micro-batches a step.
    evaluated, padding, normalising, energy, balance, first, keeps: other ways to write
        the same mathematics.
    """

    batch: int = 8
    lr: float = 5e-3
    weight_decay: float = 0.0
    decoupled: bool = False
    z_lr: float = 0.1
    clip: float = 10.0
    least: int = _FEWEST
    epsilon: float = 0.5
    anneals: bool = True
    temperature: float = 0.5
    halves: bool = True
    explored: bool = False
    stops: bool = True
    parents: str = "after"
    flows: bool = True
    sums: bool = True
    parts: int = 1
    evaluated: str = "padded"
    padding: int = 0
    normalising: str = "torch"
    energy: str = "quadratic"
    balance: str = "own"
    first: str = "rolled"
    keeps: str = "all"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = FlowNet(self)
            energy = Energy(self, _shades(digits()[0]))
            policies = [one for name, one in model.named_parameters() if name != "log_z"]
            optimizer = self.adam(
                [{"params": policies}, {"params": [model.log_z], "lr": self.z_lr}]
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, (images, _) in enumerate(self.images(seed)):
                epsilon = self.epsilon * (0.5**step if self.anneals else 1)
                paths = [self._rolled(model, epsilon), self._retraced(model, _inked(images))]
                paths = paths if self.first == "rolled" else paths[::-1]
                states, actions = (torch.cat(both) for both in zip(*paths, strict=True))
                clear(optimizer, self)
                for part in cut(self.parts, states, actions):
                    loss = self._loss(model, energy, part, epsilon)
                    (loss * (len(part[0]) / len(states))).backward()
                nn.utils.clip_grad_norm_(policies, self.clip)
                optimizer.step()

    @torch.no_grad()
    def _rolled(self, model, epsilon):
        """Trajectories from the empty state: the states before each action, and the actions."""
        state = torch.zeros(_ROLLED, CELLS)
        ended = torch.zeros(_ROLLED, dtype=torch.bool)
        states, actions = [], []
        for _ in range(LONGEST + 1):
            probabilities = self._explored(model(state)[0].exp(), state, epsilon)
            anchorlib.anchor(probabilities, "behaviour")
            action = torch.multinomial(probabilities, 1)[:, 0].masked_fill(ended, STOP)
            states.append(state)
            actions.append(action)
            ended = action == STOP
            state = state + functional.one_hot(action, CELLS + 1)[:, :CELLS]
        return torch.stack(states, 1), torch.stack(actions, 1)

    def _explored(self, probabilities, states, epsilon):
        """The policy, mixed with a uniform choice of what is allowed."""
        allowed = forward_mask(states, self.least).to(probabilities.dtype)
        return (1 - epsilon) * probabilities + epsilon * allowed / allowed.sum(-1, keepdim=True)

    @torch.no_grad()
    def _retraced(self, model, terminal):
        """Trajectories that end at given states, by the backward policy."""
        count = terminal.sum(1).long()
        actions = torch.full((len(terminal), LONGEST + 1), STOP)
        state, rows = terminal, torch.arange(len(terminal))
        for back in range(LONGEST):
            cell = torch.multinomial(model(state)[1].exp(), 1)[:, 0]
            left = back < count
            actions[rows[left], (count - 1 - back)[left]] = cell[left]
            state = state - functional.one_hot(cell, CELLS) * left[:, None]
        taken = functional.one_hot(actions, CELLS + 1)[..., :CELLS].to(terminal.dtype)
        return taken.cumsum(1) - taken, actions

    def _loss(self, model, energy, part, epsilon):
        """Trajectory balance: the mean of the squares of what is out of balance."""
        states, actions = part
        states = torch.cat((states, states[:, -1:].expand(-1, self.padding, -1)), 1)
        actions = functional.pad(actions, (0, self.padding), value=STOP)
        inks = actions != STOP
        count = inks.sum(1, keepdim=True)
        forward, backward = self._evaluated(model, states, count)
        backward = backward[:, 1:] if self.parents == "after" else backward[:, :-1]
        backward = backward if self.flows else backward.detach()
        taken = torch.arange(actions.shape[1]) <= count if self.stops else inks
        chosen = _chosen(forward, actions)
        if self.explored:
            share = epsilon / forward_mask(states, self.least).sum(-1)
            chosen = ((1 - epsilon) * chosen.exp() + share).log()
        log_pf = self._along(chosen, taken)
        log_pb = self._along(_chosen(backward, actions[:, :-1].clamp(max=CELLS - 1)), inks[:, :-1])
        found = energy(states[:, -1])
        log_reward = -found / self.temperature
        loss = self._balance(model.log_z, log_pf, log_pb, log_reward)
        for one, name in (
            (log_pf, "log_pf"),
            (log_pb, "log_pb"),
            (found, "energy"),
            (log_reward, "log_reward"),
            (loss, "loss"),
        ):
            anchorlib.anchor(one, name)
        return loss

    def _evaluated(self, model, states, count):
        """Both policies at all states of trajectories."""
        if self.evaluated == "padded":
            return [one.unflatten(0, states.shape[:2]) for one in model(states.flatten(0, 1))]
        if self.evaluated == "steps":
            steps = [model(state) for state in states.unbind(1)]
            return [torch.stack(one, 1) for one in zip(*steps, strict=True)]
        reached = torch.arange(states.shape[1]) <= count
        policies = model(states[reached])
        return [
            one.new_zeros(*reached.shape, one.shape[-1]).index_put((reached,), one)
            for one in policies
        ]

    def _along(self, logs, mask):
        """The sum over a trajectory of what is not padding."""
        logs = torch.where(mask, logs, 0)
        return logs.sum(1) if self.sums else logs.sum(1) / mask.sum(1)

    def _balance(self, log_z, log_pf, log_pb, log_reward):
        if self.balance == "own":
            return (log_z + log_pf - log_pb - log_reward).square().mean()
        return functional.mse_loss(log_pf + log_z, log_reward + log_pb)


def _chosen(logs, actions):
    return logs.gather(-1, actions[..., None])[..., 0]


def _shades(images):
    """How much ink is in each cell of 2 × 2 pixels."""
    return functional.avg_pool2d(images[:, None], 2).flatten(1).to(torch.get_default_dtype())


def _inked(images):
    """Images as terminal states: their darkest cells."""
    shades = _shades(images)
    count = (shades > 0).sum(1, keepdim=True).clamp(_FEWEST, LONGEST)
    rank = shades.argsort(dim=1, descending=True, stable=True).argsort(1)
    return (rank < count).to(shades.dtype)


_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|input|mask|condition|target|index) |inputs? differ"
"""Words that name other numbers which an operation was given."""
_FLOW_GRADS = (
    *("log_pb@grad", "output*@grad", "backward_policy*@*grad", "backward_head*@*grad"),
    *("norm@grad", "norm.*@*grad"),
)
CASES = [
    Case(
        "couplings counted twice",
        "bug",
        {"halves": False},
        ("energy@value",),
        rf"\bDiv|{_TIMES}|{_GIVEN}|\bSub",
    ),
    Case(
        "temperature of 1",
        "bug",
        {"temperature": 1.0},
        ("log_reward@value",),
        rf"\bDiv|{_TIMES}",
    ),
    Case(
        "stop allowed a cell early",
        "bug",
        {"least": _FEWEST - 1},
        ("forward_policy@value", "forward_policy.input*@value"),
        rf"masked_?fill|\bmask|input:1|{_GIVEN}",
    ),
    Case(
        "stop left out of the sum",
        "bug",
        {"stops": False},
        ("log_pf@value",),
        rf"\bwhere|\bmask|\bSum|\bcondition|{_GIVEN}",
    ),
    Case(
        "backward probabilities of the state before",
        "bug",
        {"parents": "before"},
        ("log_pb@value",),
        rf"\bslice|\bstart\b|\bgather|\bindex|{_GIVEN}",
    ),
    Case(
        "exploration in the loss",
        "bug",
        {"explored": True},
        ("log_pf@value",),
        rf"\bLog(Backward|\b)|\bExp|\bMul|\bAdd|\bgather|{_GIVEN}",
    ),
    Case(
        "logarithms averaged over steps",
        "bug",
        {"sums": False},
        ("log_pf@value", "log_pb@value"),
        rf"\bDiv|\bmean|\bSum|{_TIMES}|a factor of its own",
    ),
    Case(
        "exploration not annealed",
        "bug",
        {"anneals": False},
        ("behaviour@value",),
        rf"\bMul|\bAdd|{_TIMES}|{_GIVEN}",
        step=1,
    ),
    Case(
        "backward policy detached",
        "bug",
        {"flows": False},
        _FLOW_GRADS,
        r"detach|gradients? come|no gradient|lacks|\bgather",
    ),
    Case("log partition at the rate of the net", "bug", {"z_lr": 5e-3}, UPDATES, r"\blr\b"),
    Case("states step by step", "benign", {"evaluated": "steps"}),
    Case("reached states alone", "benign", {"evaluated": "reached"}),
    Case("padded to 12 actions", "benign", {"padding": 3}),
    Case("log-softmax by logsumexp", "benign", {"normalising": "logsumexp"}),
    Case("energy by pairs", "benign", {"energy": "pairs"}),
    Case("balance as a squared error", "benign", {"balance": "mse"}),
    Case("two micro-batches", "benign", {"parts": 2}),
    Case("trajectories of digits first", "benign", {"first": "retraced"}),
    Case("other init", "data", {"init": 1}, ("*weight@value", "place@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("foreach", "equal", {"implementation": "foreach"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("blocks computed again", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
