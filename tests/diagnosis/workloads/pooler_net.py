"""The net of molecules: isomorphism layers, a node that all atoms share, jumps and a readout."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_WIDTH, _LAYERS = 16, 3


class Norm(nn.BatchNorm1d):
    """A batch norm, torch's or as one scale and one shift."""

    way = "torch"

    def forward(self, x):
        """x, normed over all rows."""
        if self.way == "torch" or not self.training:
            return super().forward(x)
        wide = x.to(self.weight.dtype)
        spread, mean = torch.var_mean(wide, 0, correction=0)
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(spread * (len(x) / (len(x) - 1)), self.momentum)
        scale = self.weight * (spread + self.eps).rsqrt()
        return torch.addcmul(self.bias - mean * scale, wide, scale).to(x.dtype)


def _norm(how, width: int = _WIDTH) -> Norm:
    made = Norm(width)
    made.way = how.norming
    return made


class Atoms(nn.Module):
    """The sum of embeddings of all that is known of an atom."""

    def __init__(self, sizes) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, _WIDTH) for size in sizes)
        for table in self.tables:
            nn.init.xavier_uniform_(table.weight)

    def forward(self, atoms):
        """A row for each atom."""
        return sum(table(atoms[:, at]) for at, table in enumerate(self.tables))


class Gin(nn.Module):
    """A layer that tells multisets of neighbours apart, with bonds in its messages."""

    def __init__(self, how, bonds: int) -> None:
        super().__init__()
        self.how = how
        self.bonds = nn.Embedding(bonds, _WIDTH)
        self.eps = nn.Parameter(torch.tensor(0.1))
        self.mlp = nn.Sequential(
            nn.Linear(_WIDTH, 2 * _WIDTH, bias=False),
            _norm(how, 2 * _WIDTH),
            nn.ReLU(),
            nn.Linear(2 * _WIDTH, _WIDTH, bias=False),
        )

    def forward(self, x, edges, kinds, graph):
        """x (atom, channel), moved by its neighbours."""
        how = self.how
        if how.keeps == "messages" or not torch.is_grad_enabled():
            around = self._around(x, edges, kinds, graph)
        else:
            around = checkpoint(self._around, x, edges, kinds, graph, use_reentrant=False)
        own = self.eps * x if how.own == "eps" else (1 + self.eps) * x
        return self.mlp(own + around)

    def _around(self, x, edges, kinds, graph):
        """The sum of the messages that each atom gets."""
        source, target = edges if self.how.flow == "to target" else edges.flip(0)
        bonds = self.bonds(kinds)
        if self.how.gathers == "padded":
            return self._padded(x, source, target, bonds, graph)
        messages = functional.relu(x[source] + bonds)
        if self.how.gathers == "incidence":
            return functional.one_hot(target, len(x)).T.to(messages.dtype) @ messages
        return torch.zeros_like(x).index_add(0, target, messages)

    def _padded(self, x, source, target, bonds, graph):
        """The same of pairs of atoms in graphs that are padded to the largest one."""
        counts = graph.bincount()
        place = torch.arange(len(x)) - (counts.cumsum(0) - counts)[graph]
        count, most = len(counts), int(counts.max())
        rows = x.new_zeros(count, most, x.shape[1]).index_put((graph, place), x)
        pair = graph[target], place[target], place[source]
        between = x.new_zeros(count, most, most, x.shape[1]).index_put(pair, bonds)
        bonded = x.new_zeros(count, most, most, 1).index_put(pair, x.new_ones(()))
        messages = functional.relu(rows[:, None] + between) * bonded
        return messages.sum(2)[graph, place]


class Pool(nn.Module):
    """The sum or the mean of the atoms of each graph."""

    def __init__(self, how, kind: str) -> None:
        super().__init__()
        self.how, self.kind = how, kind

    def forward(self, x, graph):
        """A row for each graph."""
        counts = graph.bincount()
        if self.how.pools == "one by one":
            parts = x.split(counts.tolist())
            return torch.stack([getattr(part, self.kind)(0) for part in parts])
        summed = x.new_zeros(len(counts), x.shape[1]).index_add(0, graph, x)
        if self.kind == "sum":
            return summed
        if self.how.divisor == "average":
            return summed / (len(x) / len(counts))
        return summed / counts[:, None]


class Jump(nn.Module):
    """The sum of what all layers say of a row."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, *states):
        """The states of a row, the embedding first."""
        return sum(states if self.how.jumps == "all" else states[:-1])


class Update(nn.Module):
    """Two layers that move the node that all atoms share."""

    def __init__(self, how) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(_WIDTH, 2 * _WIDTH, bias=False),
            _norm(how, 2 * _WIDTH),
            nn.ReLU(),
            nn.Linear(2 * _WIDTH, _WIDTH, bias=False),
            _norm(how),
            nn.ReLU(),
            nn.Dropout(how.dropout),
        )

    def forward(self, x):
        """x (graph, channel), moved."""
        return self.mlp(x)


class Net(nn.Module):
    """What a molecule does in each of several assays."""

    def __init__(self, how, atoms, bonds: int, tasks: int) -> None:
        super().__init__()
        self.how = how
        self.atoms = Atoms(atoms)
        self.virtual = nn.Embedding(1, _WIDTH)
        nn.init.zeros_(self.virtual.weight)
        self.convs = nn.ModuleList(Gin(how, bonds) for _ in range(_LAYERS))
        self.norms = nn.ModuleList(_norm(how) for _ in range(_LAYERS))
        self.drops = nn.ModuleList(nn.Dropout(how.dropout) for _ in range(_LAYERS))
        self.pools = nn.ModuleList(Pool(how, "sum") for _ in range(_LAYERS - 1))
        self.updates = nn.ModuleList(Update(how) for _ in range(_LAYERS - 1))
        self.jump, self.readout = Jump(how), Pool(how, how.readout)
        self.head = nn.Linear(_WIDTH, tasks)

    def forward(self, atoms, edges, kinds, graph):
        """Logits (graph, task) of atoms, edges (2, edge), kinds of bonds and atoms' graphs."""
        how = self.how
        x = self.atoms(atoms)
        virtual = self.virtual.weight.expand(len(graph.bincount()), -1)
        states = []
        for at in range(_LAYERS):
            x = x + self._spread(virtual, graph)
            states.append(x)
            moved = self.norms[at](self.convs[at](x, edges, kinds, graph))
            if at < _LAYERS - 1:
                pooled = self.pools[at](x, graph)
                virtual = self.updates[at](pooled + virtual if how.remembers else pooled)
            if at < _LAYERS - 1 or how.bends_last:
                moved = functional.relu(moved)
            x = self.drops[at](moved) + x
        states.append(x)
        if how.reads == "jump":
            return self.head(self.readout(self.jump(*states), graph))
        return self.head(self.jump(*(self.readout(state, graph) for state in states)))

    def _spread(self, virtual, graph):
        """Each atom's row of the shared nodes."""
        if self.how.spreads == "index":
            return virtual[graph]
        return virtual.repeat_interleave(graph.bincount(), 0)
