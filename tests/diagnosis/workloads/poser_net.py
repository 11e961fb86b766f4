"""The net of keypoints, the teacher that follows it, and AdamW as it was first written."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

_CHANNELS = (8, 12, 16)


class Stem(nn.Conv2d):
    """A strided convolution of images, torch's or one of squares of pixels as channels."""

    def __init__(self, how, out: int) -> None:
        super().__init__(1, out, 3, stride=2, padding=1, bias=False)
        self.how = how

    def forward(self, x):
        """Features, at half the size."""
        if self.how.stem == "strided":
            return super().forward(x)
        squares = functional.pixel_unshuffle(functional.pad(x, (1, 1, 1, 1)), 2)
        weight = functional.pixel_unshuffle(functional.pad(self.weight, (0, 1, 0, 1)), 2)
        return functional.conv2d(squares, weight)


class Block(nn.Module):
    """Two convolutions with norms that halve the image, and a shortcut around them."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential(
            nn.Conv2d(into, out, 1, stride=2, bias=False), nn.BatchNorm2d(out)
        )

    def forward(self, x):
        """Features, at half the size."""
        inner = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (inner + self.shortcut(x)).relu()


class Deconv(nn.ConvTranspose2d):
    """A transposed convolution that doubles the image, torch's or one of an image with gaps."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out, 4, stride=2, padding=1, bias=False)
        self.how = how

    def forward(self, x):
        """Features, at twice the size."""
        if self.how.deconvolution == "torch":
            return super().forward(x)
        count, channels, high, wide = x.shape
        apart = x.new_zeros(count, channels, 2 * high - 1, 2 * wide - 1)
        apart[:, :, ::2, ::2] = x
        return functional.conv2d(apart, self.weight.flip(2, 3).transpose(0, 1), padding=2)


class Final(nn.Conv2d):
    """A heatmap for each keypoint, by a convolution or by a product at each pixel."""

    def __init__(self, how, keypoints: int) -> None:
        super().__init__(_CHANNELS[0], keypoints, 1)
        self.how = how
        nn.init.normal_(self.weight, std=0.1)
        nn.init.zeros_(self.bias)

    def forward(self, x):
        """The heatmaps."""
        if not self.how.product:
            return super().forward(x)
        told = functional.linear(x.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias)
        return told.permute(0, 3, 1, 2)


class Net(nn.Module):
    """A backbone that makes images small, and deconvolutions that make them large again."""

    def __init__(self, how, keypoints: int) -> None:
        super().__init__()
        small, middle, large = _CHANNELS
        self.stem = nn.Sequential(Stem(how, small), nn.BatchNorm2d(small), nn.ReLU())
        self.blocks = nn.Sequential(Block(small, middle), Block(middle, large))
        self.deconvs = nn.Sequential(
            *(Deconv(how, large, middle), nn.BatchNorm2d(middle), nn.ReLU()),
            *(Deconv(how, middle, small), nn.BatchNorm2d(small), nn.ReLU()),
        )
        self.final = Final(how, keypoints)

    def forward(self, x):
        """Heatmaps of keypoints."""
        return self.final(self.deconvs(self.blocks(self.stem(x))))


class Teacher:
    """Averages of a student's state, in a net of their own."""

    def __init__(self, how, student: nn.Module) -> None:
        self.how = how
        self.model = copy.deepcopy(student).requires_grad_(requires_grad=False).eval()

    @torch.no_grad()
    def __call__(self, x):
        """The heatmaps that it tells."""
        return self.model(x)

    @torch.no_grad()
    def follow(self, student) -> None:
        """Move towards the student."""
        for own, other in zip(self.model.parameters(), student.parameters(), strict=True):
            own.lerp_(other, self.how.moves)
        if self.how.averages == "all":
            for own, other in zip(self.model.buffers(), student.buffers(), strict=True):
                if own.is_floating_point():
                    own.lerp_(other, self.how.moves)
                else:
                    own.copy_(other)


class Averages:
    """Averages of a student's state, in a dictionary that the student's net is called with."""

    def __init__(self, how, student: nn.Module) -> None:
        self.how, self.student = how, student
        self.state = {name: one.detach().clone() for name, one in student.state_dict().items()}

    @torch.no_grad()
    def __call__(self, x):
        """The heatmaps that it tells."""
        self.student.eval()
        told = functional_call(self.student, self.state, (x,))
        self.student.train()
        return told

    @torch.no_grad()
    def follow(self, student) -> None:
        """Move towards the student."""
        for name, other in student.state_dict().items():
            if other.is_floating_point():
                self.state[name].mul_(1 - self.how.moves).add_(other, alpha=self.how.moves)
            else:
                self.state[name].copy_(other)


class Adam(torch.optim.Optimizer):
    """AdamW as in its paper: averages are divided by what they lack, then by one another."""

    @torch.no_grad()
    def step(self):
        """Move all parameters."""
        for group in self.param_groups:
            one, two = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["m"] = torch.zeros_like(parameter)
                    state["v"] = torch.zeros_like(parameter)
                state["step"] += 1
                state["m"] = one * state["m"] + (1 - one) * parameter.grad
                state["v"] = two * state["v"] + (1 - two) * parameter.grad.square()
                mean = state["m"] / (1 - one ** state["step"])
                square = state["v"] / (1 - two ** state["step"])
                moved = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * parameter
                parameter.sub_(group["lr"] * moved)
