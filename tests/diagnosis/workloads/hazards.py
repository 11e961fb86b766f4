"""A net that reads an image's rows as time steps and tells how likely an end is at each of them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

STEPS = 8
"""Time steps, and as many features: each row of an image is one step."""
_WIDTH = 12


class Hazards(nn.Module):
    """Rows, with the embeddings of their times, through a GRU and a batch norm to logits."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.rows = nn.Linear(STEPS, _WIDTH)
        self.times = Times(how.begins)
        norm = nn.LayerNorm if how.norming == "torch" else LayerNorm
        self.norm = norm(_WIDTH)
        memory = nn.GRU if how.gates == "torch" else GRU
        self.memory = memory(_WIDTH, STEPS, batch_first=how.batch_first)
        level = nn.BatchNorm1d if how.levelling == "torch" else BatchNorm
        self.level = level(STEPS, momentum=how.momentum)
        self.head = nn.Linear(STEPS, 1)
        self.held = None

    def forward(self, rows):
        """Logits of the hazards (image, step)."""
        told = self.norm(self.rows(rows) + self.times(rows))
        if self.how.keeps == "edges":
            told = checkpoint(self.memory, told, use_reentrant=False)[0]
        elif self.how.carries and self.training:
            told, held = self.memory(told, self.held)
            self.held = held.detach()
        else:
            told = self.memory(told)[0]
        if self.how.levels == "features":
            told = self.level(told.transpose(1, 2)).transpose(1, 2)
        else:
            told = self.level(told)
        return self.head(functional.silu(told))[..., 0]


class Times(nn.Module):
    """Learnt embeddings of time steps."""

    def __init__(self, begins):
        super().__init__()
        self.begins = begins
        self.weight = nn.Parameter(torch.randn(STEPS + 1, _WIDTH) / 2)

    def forward(self, rows):
        """The embeddings of all steps, for each of the images."""
        steps = (torch.arange(STEPS) + self.begins).expand(len(rows), -1)
        return functional.embedding(steps, self.weight)


class LayerNorm(nn.LayerNorm):
    """The norm over the last axis, step by step."""

    def forward(self, told):
        """What is told, normed."""
        told = told - told.mean(-1, keepdim=True)
        spread = (told.square().mean(-1, keepdim=True) + self.eps).sqrt()
        return told / spread * self.weight + self.bias


class BatchNorm(nn.BatchNorm1d):
    """The norm over all but the second axis, step by step."""

    def forward(self, told):
        """What is told, normed."""
        mean, spread = self.running_mean, self.running_var
        if self.training:
            mean = told.mean((0, 2))
            spread = (told - mean[:, None]).square().mean((0, 2))
            count = told.numel() // told.shape[1]
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(spread * count / (count - 1), self.momentum)
                self.num_batches_tracked += 1
        told = (told - mean[:, None]) * (spread + self.eps).rsqrt()[:, None]
        return told * self.weight[:, None] + self.bias[:, None]


class GRU(nn.GRU):
    """The recurrence, gate by gate."""

    def forward(self, told, held=None):
        """All states, and the last one."""
        held = told.new_zeros(len(told), self.hidden_size) if held is None else held[0]
        states = []
        for given in functional.linear(told, self.weight_ih_l0, self.bias_ih_l0).unbind(1):
            reset, keep, new = given.chunk(3, 1)
            back = functional.linear(held, self.weight_hh_l0, self.bias_hh_l0)
            reset_back, keep_back, new_back = back.chunk(3, 1)
            keep = torch.sigmoid(keep + keep_back)
            new = torch.tanh(new + torch.sigmoid(reset + reset_back) * new_back)
            held = (1 - keep) * new + keep * held
            states.append(held)
        return torch.stack(states, 1), held[None]
