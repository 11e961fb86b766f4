"""An autoencoder of digits, and a layer that says how near its codes are to each centre."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional

CODE, GROUPS = 6, 10
_THIN, _WIDE = 6, 12


class Embed(nn.Linear):
    """A linear layer, torch's or by einsum."""

    way = "torch"

    def forward(self, x):
        """Codes."""
        if self.way == "einsum":
            return torch.einsum("ni,oi->no", x, self.weight) + self.bias.to(x.dtype)
        return super().forward(x)


def encoder(how):
    """Two convolutions that halve the image, and its code."""
    embed = Embed(4 * _WIDE, CODE)
    embed.way = how.linear
    layers = {
        "conv1": nn.Conv2d(1, _THIN, 3, stride=2, padding=1, bias=False),
        "norm": nn.BatchNorm2d(_THIN),
        "act1": nn.LeakyReLU(0.1),
        "conv2": nn.Conv2d(_THIN, _WIDE, 3, stride=2, padding=1),
        "act2": nn.LeakyReLU(0.1),
        "flat": nn.Flatten(),
        "embed": embed,
    }
    return nn.Sequential(OrderedDict(layers))


def decoder():
    """The way back from a code to an image."""
    layers = {
        "spread": nn.Linear(CODE, 4 * _WIDE),
        "act1": nn.LeakyReLU(0.1),
        "wide": nn.Unflatten(1, (_WIDE, 2, 2)),
        "deconv1": nn.ConvTranspose2d(_WIDE, _THIN, 3, 2, 1, output_padding=1),
        "act2": nn.LeakyReLU(0.1),
        "deconv2": nn.ConvTranspose2d(_THIN, 1, 3, 2, 1, output_padding=1),
        "bound": nn.Tanh(),
    }
    return nn.Sequential(OrderedDict(layers))


class Cluster(nn.Module):
    """How likely each code belongs to each centre, by the kernel of Student's t distribution."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.centres = nn.Parameter(torch.randn(GROUPS, CODE))

    def forward(self, z):
        """Soft assignments (sample, centre)."""
        how = self.how
        z = z.to(self.centres.dtype)
        if how.distances == "cdist":
            far = torch.cdist(z, self.centres).square()
        else:
            far = (z[:, None] - self.centres).square().sum(2)
        far = far if how.squares else far.sqrt()
        power = (how.alpha + 1) / 2
        if how.kernel == "logs":
            return functional.softmax(-power * torch.log1p(far / how.alpha), 1)
        near = (1 + far / how.alpha) ** -power
        return near / near.sum(1 if how.over == "centres" else 0, keepdim=True)


class Grouping(nn.Module):
    """Soft assignments of images, and the images as decoded."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.encoder, self.decoder, self.cluster = encoder(how), decoder(), Cluster(how)

    def forward(self, x):
        """Assignments (sample, centre) and images (sample, 1, 8, 8)."""
        z = self.encoder(x)
        return self.cluster(z if self.how.pulls else z.detach()), self.decoder(z)


def means(codes, seed):
    """Centres of codes by k-means."""
    drawing = torch.Generator().manual_seed(seed)
    centres = codes[torch.randperm(len(codes), generator=drawing)[:GROUPS]]
    for _ in range(5):
        nearest = torch.cdist(codes, centres).argmin(1)
        mine = functional.one_hot(nearest, GROUPS).to(codes.dtype)
        count = mine.sum(0)[:, None]
        centres = torch.where(count > 0, mine.T @ codes / count.clamp(min=1), centres)
    return centres
