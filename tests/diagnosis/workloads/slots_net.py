"""The model of slots: an encoder with positions, slot attention, and a broadcast decoder."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import anchorlib

SIDE = 16
"""Rows and columns of a scene."""
_WIDTH, _WIDE = 16, 32
_SEEN, _SOWN = SIDE // 2, SIDE // 4
"""Sides of the encoder's features, and of the grid onto which the decoder spreads a slot."""
_SPARE = 2
"""Slots that padding adds."""


class Positions(nn.Module):
    """Adds a learnt embedding of where a cell lies: how far it is from each of the four edges."""

    def __init__(self, how, side: int) -> None:
        super().__init__()
        self.how = how
        ramp = torch.linspace(0, 1, side)
        grid = torch.stack(torch.meshgrid(ramp, ramp, indexing="ij"), -1)
        self.register_buffer("grid", torch.cat((grid, 1 - grid), -1), persistent=False)
        self.dense = nn.Linear(4, _WIDTH)

    def forward(self, x):
        """x (sample, row, column, channel), with its positions."""
        if self.how.places == "dense":
            return x + self.dense(self.grid)
        weight, planes = self.dense.weight[..., None, None], self.grid.permute(2, 0, 1)[None]
        return x + functional.conv2d(planes, weight, self.dense.bias).permute(0, 2, 3, 1)


class Encoder(nn.Module):
    """Convolutions, positions, and a perceptron for each cell."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.convs = nn.Sequential(
            nn.Conv2d(3, _WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(_WIDTH, _WIDTH, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1),
            nn.ReLU(),
        )
        self.place = Positions(how, _SEEN)
        self.norm = nn.LayerNorm(_WIDTH)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, _WIDE), nn.ReLU(), nn.Linear(_WIDE, _WIDTH))

    def forward(self, scenes):
        """What is seen in each cell (scene, cell, channel)."""
        seen = self.convs(scenes)
        if self.how.layout == "permuted":
            seen = seen.permute(0, 2, 3, 1)
        else:
            seen = seen.reshape(-1, _SEEN, _SEEN, _WIDTH)
        return self.mlp(self.norm(self.place(seen).flatten(1, 2)))


class Cell(nn.GRUCell):
    """A gated recurrent unit, torch's or by its formulas."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTH, _WIDTH)
        self.how = how

    def forward(self, x, state):
        """The next state."""
        if self.how.gru == "torch":
            return super().forward(x, state)
        fresh, old = (
            functional.linear(x, self.weight_ih, self.bias_ih),
            functional.linear(state, self.weight_hh, self.bias_hh),
        )
        (r, z, n), (old_r, old_z, old_n) = fresh.chunk(3, -1), old.chunk(3, -1)
        reset, update = torch.sigmoid(r + old_r), torch.sigmoid(z + old_z)
        return (1 - update) * torch.tanh(n + reset * old_n) + update * state


class SlotAttention(nn.Module):
    """Slots that compete for the cells of a scene, refined over some iterations."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.mu = nn.Parameter(torch.empty(1, 1, _WIDTH))
        self.log_sigma = nn.Parameter(torch.empty(1, 1, _WIDTH))
        nn.init.xavier_uniform_(self.mu)
        nn.init.xavier_uniform_(self.log_sigma)
        self.norm_inputs, self.norm_slots, self.norm_mlp = (nn.LayerNorm(_WIDTH) for _ in range(3))
        self.to_q, self.to_k, self.to_v = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(3))
        self.gru = Cell(how)
        self.mlp = nn.Sequential(nn.Linear(_WIDTH, _WIDE), nn.ReLU(), nn.Linear(_WIDE, _WIDTH))

    def forward(self, inputs):
        """The slots of each scene (scene, slot, channel)."""
        how = self.how
        k, v = self._known(self.norm_inputs(inputs))
        slots = begun = self._begun(len(inputs))
        for iteration in range(how.iterations):
            if how.through == "last" and iteration == how.iterations - 1:
                slots = slots.detach() + (begun - begun.detach())
            if how.keeps == "all":
                slots = self._refined(slots, k, v)
            else:
                slots = checkpoint(self._refined, slots, k, v, use_reentrant=False)
        return slots

    def _known(self, inputs):
        """Keys and values."""
        if self.how.projections == "apart":
            return self.to_k(inputs), self.to_v(inputs)
        weight = torch.cat((self.to_k.weight, self.to_v.weight))
        return functional.linear(inputs, weight).chunk(2, -1)

    def _begun(self, count):
        """Slots before the first iteration, each drawn from the same learnt Gaussian."""
        noise = torch.randn(count, self.how.slots, _WIDTH)
        if self.how.padded:
            noise = functional.pad(noise, (0, 0, 0, _SPARE))
        sigma = self.log_sigma.exp() if self.how.spread == "exp" else self.log_sigma
        return self.mu + sigma * noise

    def _refined(self, slots, k, v):
        """Slots after one more iteration."""
        how = self.how
        logits = self.to_q(self.norm_slots(slots)) @ k.transpose(1, 2) * _WIDTH**-0.5
        if how.padded:
            logits = logits.masked_fill(~self.real(slots)[:, None], -torch.inf)
        attn = logits.softmax(1 if how.compete == "slots" else 2)
        anchorlib.anchor(attn[:, : how.slots] if how.padded else attn, "attn")
        if how.averages == "logs":
            updates = logits.log_softmax(1).softmax(2) @ v
        elif how.averages == "after":
            shares = attn + how.attn_eps
            updates = shares @ v / shares.sum(2, keepdim=True)
        else:
            shares = attn + how.attn_eps
            if how.averages == "before":
                shares = shares / shares.sum(2, keepdim=True)
            updates = shares @ v
        given = updates.to(slots.dtype).flatten(0, 1), slots.flatten(0, 1)
        moved = self.gru(*(given if how.recurs == "updates" else given[::-1])).view_as(slots)
        change = self.mlp(self.norm_mlp(moved))
        return moved + change if how.residual else change.to(moved.dtype)

    def real(self, slots):
        """Which slots are no padding."""
        return torch.arange(slots.shape[1]) < self.how.slots


class Decoder(nn.Module):
    """Spreads a slot over a grid, and paints colours and an alpha from there."""

    def __init__(self, how) -> None:
        super().__init__()
        self.place = Positions(how, _SOWN)
        self.convs = nn.Sequential(
            nn.ConvTranspose2d(_WIDTH, _WIDTH, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(_WIDTH, _WIDTH, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(_WIDTH, 4, 3, padding=1),
        )

    def forward(self, slots):
        """Red, green, blue and the alpha's logits (slot, 4, row, column)."""
        sown = slots[:, None, None].expand(-1, _SOWN, _SOWN, -1)
        return self.convs(self.place(sown).permute(0, 3, 1, 2))


class Net(nn.Module):
    """Scenes, taken apart into slots and painted anew."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.encoder, self.attention = Encoder(how), SlotAttention(how)
        self.decoder = Decoder(how)

    def forward(self, scenes):
        """Scenes anew, and the mask of each slot (scene, slot, 1, row, column)."""
        slots = self.attention(self.encoder(scenes))
        if self.how.decodes == "at once":
            painted = self.decoder(slots.flatten(0, 1)).unflatten(0, slots.shape[:2])
        else:
            painted = torch.stack([self.decoder(slot) for slot in slots.unbind(1)], 1)
        colours, alphas = painted.split((3, 1), 2)
        if self.how.padded:
            real = self.attention.real(slots)[:, None, None, None]
            alphas = alphas.masked_fill(~real, -torch.inf)
        masks = alphas.softmax(1 if self.how.masked == "slots" else 2)
        painted = (masks * colours).sum(1)
        return painted, masks[:, : self.how.slots] if self.how.padded else masks
