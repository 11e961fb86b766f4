"""The net of a particle simulator: it encodes a graph of neighbours, passes messages, decodes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

RADIUS = 0.12
"""How far apart neighbours are at most; the box is 1 wide and high."""
_FRAMES, _AXES, _KINDS = 6, 2, 2
_WIDTH, _STEPS = 16, 2
_FULL = 256
"""Padded graphs have a multiple of so many edges."""


class Normaliser(nn.Module):
    """Vectors less their mean, over their spread, both of all vectors that were seen in training.

    It sees what it is given in training mode, until it has seen `limit` batches.
    """

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("total", torch.zeros(_AXES))
        self.register_buffer("squares", torch.zeros(_AXES))

    def forward(self, x):
        """x, normalised."""
        if self.training and self.batches < self.how.limit:
            self._see(x.detach().reshape(-1, _AXES))
        mean, spread = self._moments()
        if self.how.normalising == "plain":
            return (x - mean) / spread
        scale = 1 / spread
        return torch.addcmul(-mean * scale, x, scale)

    def inverse(self, x):
        """What would be normalised to x."""
        mean, spread = self._moments()
        return x * spread + mean

    def _see(self, x):
        self.batches += 1
        self.count += len(x)
        self.total += x.sum(0)
        self.squares += x.square().sum(0)

    def _moments(self):
        mean = self.total / self.count
        spread = self.squares / self.count
        if self.how.spreads == "mean":
            spread = spread - mean.square()
        return mean, spread.clamp(min=0).sqrt().clamp(min=1e-8)


class Gathered(nn.Linear):
    """A linear layer on each edge's features beside those of its sender and of its receiver."""

    def __init__(self, how) -> None:
        super().__init__(3 * _WIDTH, _WIDTH)
        self.how = how

    def forward(self, edges, nodes, senders, receivers):
        """The layer on each edge."""
        if self.how.gathers == "before":
            return super().forward(torch.cat((edges, nodes[senders], nodes[receivers]), -1))
        own, sent, received = self.weight.chunk(3, 1)
        edges = functional.linear(edges, own, self.bias)
        nodes = functional.linear(nodes, torch.cat((sent, received)))
        sent, received = nodes.chunk(2, -1)
        return edges + sent[senders] + received[receivers]


class Pool(nn.Module):
    """The messages that arrive at each node, summed."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, messages, at, nodes):
        """Sums, one for each of the nodes."""
        if self.how.pools == "product":
            return functional.one_hot(at, len(nodes)).to(messages.dtype).T @ messages
        found = messages.new_zeros(len(nodes), _WIDTH).index_add(0, at, messages)
        if self.how.pools == "mean":
            return found / at.bincount(minlength=len(nodes)).clamp(min=1)[:, None]
        return found


def _mlp(*inner):
    """Layers that end in a norm."""
    return nn.Sequential(*inner, nn.ReLU(), nn.Linear(_WIDTH, _WIDTH), nn.LayerNorm(_WIDTH))


class Interaction(nn.Module):
    """One step of message passing, added to the nodes and the edges that it was given."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.gathered, self.message = Gathered(how), _mlp()
        self.pool, self.update = Pool(how), _mlp(nn.Linear(2 * _WIDTH, _WIDTH))

    def forward(self, nodes, edges, senders, receivers):
        """Nodes and edges, moved."""
        messages = self.message(self.gathered(edges, nodes, senders, receivers))
        pooled = self.pool(
            messages, senders if self.how.pools_at == "senders" else receivers, nodes
        )
        nodes = nodes + self.update(torch.cat((nodes, pooled), -1))
        return nodes, edges + messages if self.how.edges_add else messages


class Simulator(nn.Module):
    """Normalised accelerations of particles, of their last places."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.velocities, self.accelerations = Normaliser(how), Normaliser(how)
        self.kinds = nn.Embedding(_KINDS, 4)
        seen = (_FRAMES - 1) * _AXES + 2 * _AXES + 4
        self.encode_nodes = _mlp(nn.Linear(seen, _WIDTH))
        self.encode_edges = _mlp(nn.Linear(_AXES + 1, _WIDTH))
        self.processor = nn.ModuleList(Interaction(how) for _ in range(_STEPS))
        self.decoder = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _AXES))

    def forward(self, window, kinds, graphs):
        """Accelerations (particle, axis) of places (particle, frame, axis)."""
        latest = window[:, -1]
        senders, receivers = self._neighbours(latest, graphs)
        nodes, edges = self._nodes(window, kinds), _edges(latest, senders, receivers)
        if self.how.pads:
            more = -len(edges) % _FULL
            nodes = functional.pad(nodes, (0, 0, 0, 1))
            edges = functional.pad(edges, (0, 0, 0, more))
            senders, receivers = (
                functional.pad(ends, (0, more), value=len(latest)) for ends in (senders, receivers)
            )
        nodes, edges = self.encode_nodes(nodes), self.encode_edges(edges)
        for step in self.processor:
            if self.how.keeps == "all" or not torch.is_grad_enabled():
                nodes, edges = step(nodes, edges, senders, receivers)
            else:
                nodes, edges = checkpoint(
                    step, nodes, edges, senders, receivers, use_reentrant=False
                )
        return self.decoder(nodes)[: len(latest)]

    def _nodes(self, window, kinds):
        """How particles moved, how near the walls they are, and of what kind."""
        latest = window[:, -1]
        walls = torch.cat((latest, 1 - latest), -1) / RADIUS
        walls = walls.clamp(-1, 1) if self.how.clips_walls else walls
        moved = self.velocities(window.diff(dim=1)).flatten(1)
        return torch.cat((moved, walls, self.kinds(kinds)), -1)

    @torch.no_grad()
    def _neighbours(self, places, graphs):
        """Senders and receivers of all edges, each particle's own to itself among them."""
        if self.how.search == "tree":
            return _by_tree(places, graphs)
        if self.how.search == "cdist":
            near = torch.cdist(places, places) <= RADIUS
        else:
            near = (places[:, None] - places).norm(dim=-1) <= RADIUS
        if self.how.separates:
            near = near & (graphs[:, None] == graphs)
        receivers, senders = near.nonzero(as_tuple=True)
        return senders, receivers


def _by_tree(places, graphs):
    """The neighbours in the order in which a tree finds them."""
    from sklearn.neighbors import KDTree  # which imports scipy: a second of a processor

    senders, receivers = [], []
    for graph in graphs.unique():
        own = (graphs == graph).nonzero()[:, 0]
        own_places = places[own].numpy()
        found = KDTree(own_places, leaf_size=4).query_radius(own_places, RADIUS)
        for receiver, near in zip(own, found, strict=True):
            senders.append(own[torch.from_numpy(near)])
            receivers.append(receiver.expand(len(near)))
    return torch.cat(senders), torch.cat(receivers)


def _edges(places, senders, receivers):
    """Displacements and their lengths, as multiples of the radius."""
    apart = (places[senders] - places[receivers]) / RADIUS
    return torch.cat((apart, apart.norm(dim=-1, keepdim=True)), -1)
