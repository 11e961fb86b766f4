"""A child-sum Tree-LSTM over forests, level by level."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

CLASSES = 5
OPERATORS = ("add", "times", "max", "negate")
SYMBOLS = CLASSES + len(OPERATORS)
_WIDTH, _HIDDEN = 12, 16


def heights(parents):
    """How far each node stands above the leaves."""
    found = [0] * len(parents)
    for node, parent in enumerate(parents):
        if parent >= 0:
            found[parent] = max(found[parent], found[node] + 1)
    return found


def _levels(parents, by):
    """Nodes that are computed at once, with their children, and whose children these are."""
    places = heights(parents)
    if by == "depth":
        top = max(places)
        for node in range(len(parents) - 1, -1, -1):
            places[node] = top if parents[node] < 0 else places[parents[node]] - 1
    elif by == "recursion":
        places = list(range(len(parents)))
    inner = [[] for _ in parents]
    for node, parent in enumerate(parents):
        if parent >= 0:
            inner[parent].append(node)
    for place in range(min(places), max(places) + 1):
        nodes = [node for node, at in enumerate(places) if at == place]
        owned = [(child, at) for at, node in enumerate(nodes) for child in inner[node]]
        children = torch.tensor([child for child, _ in owned], dtype=torch.long)
        yield torch.tensor(nodes), children, torch.tensor([at for _, at in owned]).long()


class Sum(nn.Module):
    """The sum of all children of each node."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, values, owners, count: int):
        """Sums (node, hidden) of values (child, hidden)."""
        zeros = values.new_zeros(count, values.shape[1])
        if self.how.gathers == "add":
            return zeros.index_add(0, owners, values)
        if self.how.gathers == "overwrite":
            return zeros.index_put((owners,), values)
        if self.how.gathers == "matrix":
            nodes = torch.arange(count)
            return (nodes[:, None] == owners).to(values.dtype) @ values
        ends = torch.bincount(owners, minlength=count).cumsum(0)
        sums = torch.cat((zeros[:1], values.cumsum(0)))[torch.cat((ends.new_zeros(1), ends))]
        return sums.diff(dim=0)


class Cell(nn.Module):
    """The states of nodes, from their symbols and from their children's states."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.gates, self.forget = nn.Linear(_WIDTH, 3 * _HIDDEN), nn.Linear(_WIDTH, _HIDDEN)
        self.gates_below = nn.Linear(_HIDDEN, 3 * _HIDDEN, bias=False)
        self.forget_below = nn.Linear(_HIDDEN, _HIDDEN, bias=False)
        self.states, self.memories = Sum(how), Sum(how)

    def forward(self, x, states, memories, owners):
        """States and memories (node, hidden), of those of the children."""
        below = self.states(states, owners, len(x))
        if self.how.gates == "added":
            gates = self.gates(x) + self.gates_below(below)
        else:
            weight = torch.cat((self.gates.weight, self.gates_below.weight), 1)
            gates = functional.linear(torch.cat((x, below), 1), weight, self.gates.bias)
        enters, leaves, new = gates.to(x.dtype).chunk(3, 1)
        seen = states if self.how.forgets == "each" else below[owners]
        kept = (self.forget(x)[owners] + self.forget_below(seen)).to(x.dtype).sigmoid()
        memory = enters.sigmoid() * new.tanh() + self.memories(kept * memories, owners, len(x))
        memory = memory.to(x.dtype)
        return leaves.sigmoid() * memory.tanh(), memory


class Net(nn.Module):
    """A tree's nodes from the leaves to the root, and what each is worth."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.embed = nn.Embedding(SYMBOLS, _WIDTH)
        self.drop_in, self.drop_out = nn.Dropout(how.dropout), nn.Dropout(how.dropout)
        self.cell = Cell(how)
        self.head, self.chances = nn.Linear(_HIDDEN, CLASSES), nn.LogSoftmax(how.over)

    def forward(self, symbols, parents, labelled):
        """Logarithms of chances (node, class)."""
        how = self.how
        x = self.drop_in(self.embed(symbols))
        states = memories = x.new_zeros(len(x), _HIDDEN)
        levels = list(_levels(parents.tolist(), how.levels))
        for nodes, children, owners in levels[: len(levels) - how.reaches]:
            below = states[children], memories[children]
            below = below if how.flows else tuple(one.detach() for one in below)
            if how.checkpointed and torch.is_grad_enabled():
                told = checkpoint(self.cell, x[nodes], *below, owners, use_reentrant=False)
            else:
                told = self.cell(x[nodes], *below, owners)
            states = states.index_copy(0, nodes, told[0])
            memories = memories.index_copy(0, nodes, told[1])
        states = self.drop_out(states)
        states = states if how.told == "all" else states[labelled]
        return self.chances(self.head(states).to(x.dtype))
