"""The nets of a classifier whose logits are energies too, and the images that it remembers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_CHANNELS, _WIDE = 8, 12


class Conv(nn.Conv2d):
    """A 3 × 3 convolution whose weight is divided by its largest singular value.

    The value is followed by one step of the power method in each forward that trains. Forwards in
    eval mode use the vectors that are there.
    """

    def __init__(self, how, into: int, out: int, stride: int = 1) -> None:
        super().__init__(into, out, 3, stride=stride, padding=1)
        self.how = how
        with torch.no_grad():
            u = functional.normalize(torch.randn(out), dim=0)
            v = functional.normalize(self.weight.flatten(1).T @ u, dim=0)
        self.register_buffer("u", u)
        self.register_buffer("v", v)

    def forward(self, x):
        """The convolution."""
        sigma = self._sigma(self.weight.flatten(1))
        sigma = sigma if self.how.normed == "attached" else sigma.detach()
        if self.how.divides == "weight":
            return self._conv_forward(x, self.weight / sigma, self.bias)
        return self._conv_forward(x, self.weight, None) / sigma + self.bias[:, None, None]

    def _sigma(self, weight):
        if self.how.sigma == "exact":
            return torch.linalg.matrix_norm(weight, 2)
        if self.how.sigma == "gram":
            return torch.linalg.eigvalsh(weight @ weight.T)[-1].sqrt()
        if self.training:
            with torch.no_grad():
                self.v.copy_(functional.normalize(weight.T @ self.u, dim=0))
                self.u.copy_(functional.normalize(weight @ self.v, dim=0))
        # clones, as the next forward writes into the vectors before this one's backward
        return torch.dot(self.u.clone(), weight @ self.v.clone())


class Residual(nn.Module):
    """Two convolutions that are added to what they are given."""

    def __init__(self, how) -> None:
        super().__init__()
        self.first, self.second = Conv(how, _WIDE, _WIDE), Conv(how, _WIDE, _WIDE)
        self.act = nn.SiLU()

    def forward(self, x):
        """x, moved."""
        return x + self.second(self.act(self.first(self.act(x))))


class FreeEnergy(nn.Module):
    """The energy of an image, of the logits of its classes."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, logits):
        """Less the logarithm of the sum of exponentials."""
        if self.how.energy == "torch":
            return -logits.logsumexp(self.how.over)
        most = logits.detach().amax(1, keepdim=True)
        return -((logits - most).exp().sum(1).log() + most[:, 0])


class Classifier(nn.Module):
    """A convolutional net without batch norm, which would mix real images and samples."""

    def __init__(self, how) -> None:
        super().__init__()
        self.stem, self.down = Conv(how, 1, _CHANNELS), Conv(how, _CHANNELS, _WIDE, stride=2)
        self.block = Residual(how)
        self.act = nn.SiLU()
        self.head = nn.Linear(_WIDE, 10)
        self.energy = FreeEnergy(how)

    def forward(self, x):
        """The energies and the logits of images (sample, 1, 8, 8)."""
        x = self.block(self.down(self.act(self.stem(x))))
        logits = self.head(self.act(x).sum((2, 3)))
        return self.energy(logits), logits


class Buffer:
    """Samples of earlier steps, which chains of Langevin steps go on from."""

    def __init__(self, how, size: int) -> None:
        images = uniform(size)
        self.how = how
        self.images = images if how.held == "tensor" else list(images)

    def __len__(self) -> int:
        return len(self.images)

    def read(self, places):
        """The images at places."""
        if self.how.held == "tensor":
            return self.images[places]
        return torch.stack([self.images[place] for place in places.tolist()])

    def write(self, places, images) -> None:
        """Replace the images at places."""
        if self.how.held == "tensor":
            self.images[places] = images
            return
        for place, image in zip(places.tolist(), images, strict=True):
            self.images[place] = image


def uniform(count: int) -> torch.Tensor:
    """Images of uniform noise."""
    return torch.rand(count, 1, 8, 8) * 2 - 1
