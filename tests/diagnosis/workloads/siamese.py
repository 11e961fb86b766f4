"""The model of a tracker: features of a template slide over features of each frame."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

import anchorlib

STRIDE, CELLS, FIRST = 2, 6, 5.0
"""How far cells lie apart, how many there are in a row, and where the first of them stands."""
_CHANNELS, _STATE = 8, 6


class Norm(nn.BatchNorm2d):
    """A batch norm, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(_CHANNELS)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch" or not self.training:
            return super().forward(x)
        axes, sizes = (0, 2, 3), (1, -1, 1, 1)
        spread, mean = torch.var_mean(x.to(self.weight.dtype), axes, correction=0)
        count = x.numel() // x.shape[1]
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(spread * (count / (count - 1)), self.momentum)
        factor = self.weight * (spread + self.eps).rsqrt()
        return (x - mean.view(sizes)) * factor.view(sizes) + self.bias.view(sizes)


class Backbone(nn.Module):
    """Two convolutions, of which the first does not learn."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.stem = nn.Conv2d(1, _CHANNELS, 3, bias=False)
        self.stem_norm, self.norm = Norm(how), Norm(how)
        self.conv = nn.Conv2d(_CHANNELS, _CHANNELS, 3, stride=STRIDE, bias=False)
        for part in (self.stem, self.stem_norm):
            part.requires_grad_(how.learns)
        self.stem_norm.train(how.wakes)

    def forward(self, x):
        """Features of images (image, 1, row, column)."""
        return self.norm(self.conv(self.stem_norm(self.stem(x)).relu()))


class Correlation(nn.Module):
    """How well a template fits at each place, channel by channel and image by image."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, kernel, x):
        """kernel (image, channel, 3, 3) along x (image, channel, row, column)."""
        how, (count, channels, *size) = self.how, x.shape
        kernel = kernel.flip(2, 3) if how.turns else kernel
        kernel = kernel.transpose(0, 1) if how.deals == "channels" else kernel
        kernel = kernel.reshape(count * channels, 1, *kernel.shape[2:])
        if how.correlating == "groups":
            images = x.reshape(1, count * channels, *size)
            found = functional.conv2d(images, kernel, groups=count * channels)
            found = found.view(count, channels, CELLS, CELLS)
        elif how.correlating == "each":
            pairs = zip(x.split(1), kernel.split(channels), strict=True)
            found = torch.cat([functional.conv2d(one, own, groups=channels) for one, own in pairs])
        elif how.correlating == "waves":
            own = kernel.view(count, channels, *kernel.shape[2:])
            own, waves = torch.fft.rfft2(own, size), torch.fft.rfft2(x)
            found = torch.fft.irfft2(own.conj() * waves, size)[..., :CELLS, :CELLS]
        else:
            patches = functional.unfold(x, kernel.shape[2:]).unflatten(1, (channels, -1))
            own = kernel.view(count, channels, 1, -1)
            found = (own @ patches).view(count, channels, CELLS, CELLS)
        area = kernel.shape[2] * kernel.shape[3]
        return found / area if how.divides else found


class Memory(nn.Module):
    """A gated recurrent unit of convolutions."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.gates = nn.Conv2d(_CHANNELS + _STATE, 2 * _STATE, 3, padding=1)
        self.new = nn.Conv2d(_CHANNELS + _STATE, _STATE, 3, padding=1)

    def forward(self, x, state):
        """The next state."""
        how = self.how
        keeps, resets = self.gates(torch.cat((x, state), 1)).sigmoid().chunk(2, 1)
        before = resets * state if how.resets else state
        new = self.new(torch.cat((x, before), 1)).tanh()
        if how.gated == "exchanged":
            new, state = state, new
        if how.moving == "lerp":
            return torch.lerp(new, state.to(new.dtype), keeps)
        return keeps * state + (1 - keeps) * new


class Tracker(nn.Module):
    """Tells of each frame where a digit is that is known from its first image."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.backbone, self.correlation, self.memory = Backbone(how), Correlation(how), Memory(how)
        self.name, self.sides = nn.Conv2d(_STATE, 1, 1), nn.Conv2d(_STATE, 4, 1)
        self.scale = nn.Parameter(torch.ones(()))
        if how.prior:
            nn.init.constant_(self.name.bias, -math.log((1 - how.prior) / how.prior))

    def begun(self, template):
        """What is known of templates and of the frames before the first one."""
        features = self.backbone(anchorlib.anchor(template, "image"))
        features = features if self.how.templates == "attached" else features.detach()
        return features, features.new_zeros(len(template), _STATE, CELLS, CELLS)

    def forward(self, frame, template, state):
        """Logits (image, cell), logarithms of distances (image, cell, side), and the state."""
        found = self.correlation(template, self.backbone(frame))
        state = anchorlib.anchor(self.memory(found, state), "state")
        sides = self.sides(state) * self.scale
        return self.name(state).flatten(1), sides.flatten(2).transpose(1, 2), state

    @torch.no_grad()
    def renewed(self, template, crops):
        """Templates that have become a little more like what was seen last."""
        fresh = self.backbone(crops)
        share = self.how.stays
        return anchorlib.anchor(share * template + (1 - share) * fresh, "template")
