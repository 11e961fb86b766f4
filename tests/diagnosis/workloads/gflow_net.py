"""The policies of a flow network that inks cells of a grid, and the energy of what is inked."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

CELLS, STOP, LONGEST = 16, 16, 8
"""Cells of the grid, the action that ends a trajectory, and how many cells are inked at most."""
_WIDTH, _HEADS = 16, 2
_NEVER = -1e9


def forward_mask(states, least: int):
    """Which actions a state allows: cells without ink, and to stop once `least` have some."""
    inked = states.sum(-1, keepdim=True)
    return torch.cat(((states < 0.5) & (inked < LONGEST), inked >= least), -1)


def backward_mask(states):
    """Which cells the last action can have inked; the empty state has no parents to mask."""
    inked = states > 0.5
    return inked | ~inked.any(-1, keepdim=True)


class Policy(nn.Module):
    """The logarithms of the probabilities of those actions that are allowed."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, logits, mask):
        """Normalised over the last axis."""
        logits = logits.masked_fill(~mask, _NEVER)
        if self.how.normalising == "torch":
            return logits.log_softmax(-1)
        return logits - logits.logsumexp(-1, keepdim=True)


class Attention(nn.Module):
    """Attention of all cells to all cells."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH, bias=False)
        self.out = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x):
        """x, mixed."""
        q, k, v = (
            part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(_WIDTH // _HEADS)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and two layers, each added to what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, x):
        """x, moved."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class FlowNet(nn.Module):
    """A torso that both policies share, and the logarithm of the partition function."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.ink = nn.Embedding(2, _WIDTH)
        self.place = nn.Parameter(torch.randn(CELLS, _WIDTH) * 0.5)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(_WIDTH)
        self.forward_head, self.stop_head = nn.Linear(_WIDTH, 1), nn.Linear(_WIDTH, 1)
        self.backward_head = nn.Linear(_WIDTH, 1, bias=False)
        self.forward_policy, self.backward_policy = Policy(how), Policy(how)
        self.log_z = nn.Parameter(torch.zeros(()))

    def forward(self, states):
        """For states (state, cell): log P_F of cells and of stopping, and log P_B of cells."""
        x = self.ink(states.long()) + self.place
        for block in self.blocks:
            if self.how.keeps == "all" or not torch.is_grad_enabled():
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=False)
        x = self.norm(x)
        logits = torch.cat((self.forward_head(x)[..., 0], self.stop_head(x.mean(1))), -1)
        return (
            self.forward_policy(logits, forward_mask(states, self.how.least)),
            self.backward_policy(self.backward_head(x)[..., 0], backward_mask(states)),
        )


class Energy(nn.Module):
    """An Ising model of inked cells: its fields and couplings are those of written digits."""

    def __init__(self, how, shades) -> None:
        super().__init__()
        self.how = how
        couplings = torch.corrcoef(shades.T)
        self.register_buffer("couplings", couplings - couplings.diag().diag())
        self.register_buffer("fields", 2 * (shades.mean(0) - shades.mean()) / shades.std())

    def forward(self, x):
        """The energies of terminal states (state, cell)."""
        if self.how.energy == "quadratic":
            pairs = ((x @ self.couplings) * x).sum(-1)
            pairs = pairs / 2 if self.how.halves else pairs
        else:
            one, other = torch.triu_indices(CELLS, CELLS, 1)
            pairs = (self.couplings[one, other] * x[:, one] * x[:, other]).sum(-1)
        return -(x @ self.fields) - pairs
