"""The nets of a CycleGAN: generators of residual blocks, and discriminators of patches."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_COLOURS, _WIDTH, _BLOCKS = 3, 4, 2


class Norm(nn.InstanceNorm2d):
    """An instance norm, torch's or as a group norm of one channel a group."""

    way = "torch"

    def forward(self, x):
        """x, each channel of each image normed."""
        if self.way == "groups":
            return functional.group_norm(x, x.shape[1], eps=self.eps)
        return super().forward(x)


def norm(how, channels: int) -> nn.Module:
    """A norm without parameters, over images or over the batch."""
    if how.norm == "batch":
        return nn.BatchNorm2d(channels, affine=False, track_running_stats=False)
    made = Norm(channels)
    made.way = how.norming
    return made


class Block(nn.Module):
    """Two convolutions, added to what they are given."""

    def __init__(self, how, channels: int) -> None:
        super().__init__()
        pad = nn.ReflectionPad2d if how.padding == "reflect" else nn.ZeroPad2d
        self.pad1, self.pad2 = pad(1), pad(1)
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, bias=False) for _ in range(2))
        self.norm1, self.norm2 = norm(how, channels), norm(how, channels)
        self.act = nn.ReLU()

    def forward(self, x):
        """x, moved."""
        moved = self.act(self.norm1(self.conv1(self.pad1(x))))
        return x + self.norm2(self.conv2(self.pad2(moved)))


class Generator(nn.Module):
    """Images of one domain as images of the other one."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        wide, wider, widest = _WIDTH, 2 * _WIDTH, 4 * _WIDTH
        self.enter = nn.Sequential(
            nn.ReflectionPad2d(3),
            nn.Conv2d(_COLOURS, wide, 7, bias=False),
            norm(how, wide),
            nn.ReLU(),
        )
        self.down = nn.Sequential(
            nn.Conv2d(wide, wider, 3, stride=2, padding=1, bias=False),
            norm(how, wider),
            nn.ReLU(),
            nn.Conv2d(wider, widest, 3, stride=2, padding=1, bias=False),
            norm(how, widest),
            nn.ReLU(),
        )
        self.blocks = nn.ModuleList(Block(how, widest) for _ in range(_BLOCKS))
        self.up = nn.Sequential(
            nn.ConvTranspose2d(widest, wider, 3, stride=2, padding=1, output_padding=1, bias=False),
            norm(how, wider),
            nn.ReLU(),
            nn.ConvTranspose2d(wider, wide, 3, stride=2, padding=1, output_padding=1, bias=False),
            norm(how, wide),
            nn.ReLU(),
        )
        self.leave = nn.Sequential(nn.ReflectionPad2d(3), nn.Conv2d(wide, _COLOURS, 7), nn.Tanh())

    def forward(self, x):
        """x (image, 3, 16, 16), translated."""
        x = self.down(self.enter(x))
        for block in self.blocks:
            if self.how.keeps == "all" or not torch.is_grad_enabled():
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=False)
        return self.leave(self.up(x))


class Discriminator(nn.Module):
    """How real each patch of an image looks."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        wide, wider, widest = _WIDTH, 2 * _WIDTH, 4 * _WIDTH
        self.layers = nn.Sequential(
            nn.Conv2d(_COLOURS, wide, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(wide, wider, 4, stride=2, padding=1, bias=False),
            norm(how, wider),
            nn.LeakyReLU(0.2),
            nn.Conv2d(wider, widest, 4, padding=1, bias=False),
            norm(how, widest),
            nn.LeakyReLU(0.2),
            nn.Conv2d(widest, 1, 4, padding=1),
        )

    def forward(self, x):
        """A map of patches (image, 1, 2, 2)."""
        x = self.layers(x)
        return x.sigmoid() if self.how.squashes else x


class CycleGAN(nn.Module):
    """Both generators and both discriminators, their weights drawn as DCGAN draws them."""

    def __init__(self, how) -> None:
        super().__init__()
        self.g_ab, self.g_ba = Generator(how), Generator(how)
        self.d_a, self.d_b = Discriminator(how), Discriminator(how)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.normal_(module.weight, 0.0, 0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


class Pool:
    """Some earlier translations; once there are enough, half the images asked for are older."""

    def __init__(self, size: int, chance: random.Random) -> None:
        self.size, self.chance = size, chance
        self.images: list[torch.Tensor] = []

    def query(self, images):
        """The images, or older ones in exchange."""
        if not self.size:
            return images
        return torch.stack([self._exchanged(image) for image in images])

    def _exchanged(self, image):
        if len(self.images) < self.size:
            self.images.append(image)
        elif self.chance.uniform(0, 1) > 0.5:
            at = self.chance.randrange(self.size)
            image, self.images[at] = self.images[at], image
        return image


class Buffer(Pool):
    """The same pool, whose images lie in one tensor."""

    def __init__(self, size: int, chance: random.Random) -> None:
        super().__init__(size, chance)
        self.kept, self.count = torch.zeros(size, _COLOURS, 16, 16), 0

    def _exchanged(self, image):
        if self.count < self.size:
            self.kept[self.count] = image
            self.count += 1
        elif self.chance.uniform(0, 1) > 0.5:
            at = self.chance.randrange(self.size)
            older = self.kept[at].clone()
            self.kept[at] = image
            return older
        return image
