"""A net of two modalities: a GRU reads rows, a convolution sees patches, and a gate fuses them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_WIDTH, _CHANNELS = 12, 8


class Rows(nn.GRU):
    """A GRU over the rows of an image, torch's or by its formulas."""

    def __init__(self, how) -> None:
        super().__init__(8, _WIDTH, batch_first=True)
        self.how = how

    def begin(self):
        """Draw the recurrent weights."""
        for part in self.weight_hh_l0.chunk(3):
            nn.init.orthogonal_(part)

    def forward(self, x):
        """The states after each row (sample, row, width)."""
        if self.how.recurrence == "torch":
            states, _ = super().forward(x)
            return states
        steps = self._cells(x) if self.how.recurrence == "cells" else self._formulas(x)
        return torch.stack(list(steps), 1)

    def _cells(self, x):
        state = x.new_zeros(len(x), _WIDTH)
        for row in x.unbind(1):
            state = torch.gru_cell(
                row, state, self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0
            )
            yield state

    def _formulas(self, x):
        state = x.new_zeros(len(x), _WIDTH)
        given = functional.linear(x, self.weight_ih_l0, self.bias_ih_l0)
        for row in given.unbind(1):
            reset, renew, new = row.chunk(3, 1)
            kept = functional.linear(state, self.weight_hh_l0, self.bias_hh_l0).chunk(3, 1)
            reset, renew = torch.sigmoid(reset + kept[0]), torch.sigmoid(renew + kept[1])
            new = torch.tanh(new + reset * kept[2])
            state = (1 - renew) * new + renew * state
            yield state


class Stem(nn.Conv2d):
    """Patches of 2 × 2 pixels, by weights that stay as they are drawn."""

    def __init__(self, how) -> None:
        super().__init__(1, _CHANNELS, 2, stride=2)
        self.requires_grad_(how.thaws)


class Conv(nn.Conv2d):
    """A 3 × 3 convolution, torch's or as a product."""

    def __init__(self, how) -> None:
        super().__init__(_CHANNELS, _CHANNELS, 3, padding=1)
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.how.convolution == "torch":
            return super().forward(x)
        found = self.weight.flatten(1) @ functional.unfold(x, 3, padding=1)
        return (found + self.bias[:, None]).view_as(x)


class Patches(nn.Module):
    """Patches that are drawn once, a convolution over them, and their mean."""

    def __init__(self, how) -> None:
        super().__init__()
        self.stem = Stem(how)
        self.conv = Conv(how)
        self.act = nn.GELU()
        self.out = nn.Linear(_CHANNELS, _WIDTH)

    def forward(self, x):
        """What the patches tell (sample, width)."""
        x = self.act(self.conv(self.act(self.stem(x))))
        return self.out(x.mean((2, 3)))


class Norm(nn.LayerNorm):
    """A layer norm, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTH)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch":
            return super().forward(x)
        wide = x.to(self.weight.dtype)
        spread, mean = torch.var_mean(wide, -1, correction=0, keepdim=True)
        return (wide - mean) * (spread + self.eps).rsqrt() * self.weight + self.bias


class Gate(nn.Linear):
    """How much of each feature comes from the rows, the rest comes from the patches."""

    def __init__(self, how) -> None:
        super().__init__(2 * _WIDTH, _WIDTH)
        self.how = how

    def forward(self, rows, patches):
        """The fused features."""
        share = self._share(rows, patches)
        if self.how.gates == "turned":
            return (1 - share) * rows + share * patches
        if self.how.fusion == "lerp":
            return torch.lerp(patches, rows, share)
        return share * rows + (1 - share) * patches

    def _share(self, rows, patches):
        how = self.how
        if how.gated == "apart":
            of_rows, of_patches = self.weight.chunk(2, 1)
            given = functional.linear(rows, of_rows, self.bias)
            given = given + functional.linear(patches, of_patches)
        else:
            both = torch.cat((rows, patches), 1)
            given = super().forward(both.detach() if how.gated == "detached" else both)
        if how.share == "softmax":
            return torch.stack((given, torch.zeros_like(given))).softmax(0)[0]
        if how.share == "batch":
            return given.softmax(0)
        return given.sigmoid()


class Fused(nn.Module):
    """Digits told from both modalities, and from each alone."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.rows, self.patches = Rows(how), Patches(how)
        self.norm1, self.norm2 = Norm(how), Norm(how)
        self.gate, self.drop = Gate(how), nn.Dropout(how.dropout)
        self.head, self.aux1, self.aux2 = (nn.Linear(_WIDTH, 10) for _ in range(3))
        if how.starts == "orthogonal":
            self.rows.begin()

    def forward(self, images, kept):
        """Logits of both, of the rows and of the patches; kept (sample, 2): modalities' factors."""
        how = self.how
        sequence = images.transpose(1, 2) if how.lines == "columns" else images
        rows = self.norm1(self.rows(sequence)[:, how.reads])
        patches = self.norm2(self.patches(images[:, None]))
        alone = (rows.detach(), patches.detach()) if how.aux_detached else (rows, patches)
        fused = self.gate(rows * kept[:, :1], patches * kept[:, 1:])
        return self.head(self.drop(fused)), self.aux1(alone[0]), self.aux2(alone[1])
