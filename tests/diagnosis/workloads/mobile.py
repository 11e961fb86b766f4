"""The models of a distillation: a wide teacher, and a student with convolutions by channel."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

_CHANNELS, _INNER, _WIDE = 12, 16, 16


class Conv(nn.Conv2d):
    """A convolution: torch's, the sum of what its taps see, or a product over channels."""

    way = "torch"

    def forward(self, x):
        """The convolution."""
        if self.way == "taps" and self.groups > 1 and self.padding_mode == "zeros":
            high, wide = x.shape[2:]
            padded = functional.pad(x, (1, 1, 1, 1))
            parts = [
                padded[..., row : row + high, column : column + wide]
                * self.weight[:, 0, row, column, None, None]
                for row in range(3)
                for column in range(3)
            ]
            return sum(parts[1:], parts[0])
        if self.way == "product" and self.kernel_size == (1, 1):
            out = torch.einsum("oi,nihw->nohw", self.weight[:, :, 0, 0], x)
            return out if self.bias is None else out + self.bias[:, None, None]
        return super().forward(x)


class Norm(nn.BatchNorm2d):
    """A batch norm, torch's or by its formula."""

    way = "torch"

    def forward(self, x):
        """x, normed."""
        if self.way == "torch":
            return super().forward(x)
        wide = x.to(self.weight.dtype)
        mean = wide.mean((0, 2, 3))
        missed = wide - mean[:, None, None]
        spread = missed.square().mean((0, 2, 3))
        with torch.no_grad():
            count = x.numel() / x.shape[1]
            fair = spread * count / (count - 1)
            self.running_mean.mul_(1 - self.momentum).add_(mean, alpha=self.momentum)
            self.running_var.mul_(1 - self.momentum).add_(fair, alpha=self.momentum)
            self.num_batches_tracked.add_(1)
        normed = missed / (spread + self.eps).sqrt()[:, None, None]
        return (normed * self.weight[:, None, None] + self.bias[:, None, None]).to(x.dtype)


class Act(nn.Module):
    """A hard swish, written in one of two ways, or a swish that is not hard."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The activation."""
        if self.how.swish == "soft":
            return functional.silu(x)
        if self.how.act == "torch":
            return functional.hardswish(x)
        return x * (functional.relu6(x + 3) * (1 / 6))


class Squeeze(nn.Module):
    """What a channel is multiplied by, told from the means of all channels."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.down, self.up = Conv(_INNER, 4, 1), Conv(4, _INNER, 1)
        self.act = nn.ReLU()

    def forward(self, x):
        """x, channel by channel made smaller."""
        told = self.up(self.act(self.down(x.mean((2, 3), keepdim=True))))
        return x * (
            told.sigmoid() if self.how.squeeze == "sigmoid" else functional.hardsigmoid(told)
        )


class Block(nn.Module):
    """Wider, by channel, squeezed, narrower, and what was given added."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.wider = Conv(_CHANNELS, _INNER, 1, bias=False)
        self.norm1, self.act1 = Norm(_INNER, momentum=how.momentum), Act(how)
        self.deep = Conv(_INNER, _INNER, 3, 1, 1, groups=_INNER, bias=False, padding_mode=how.pads)
        self.norm2, self.act2 = Norm(_INNER, momentum=how.momentum), Act(how)
        self.squeeze = Squeeze(how)
        self.narrower = Conv(_INNER, _CHANNELS, 1, bias=False)
        self.norm3 = Norm(_CHANNELS, momentum=how.momentum)

    def forward(self, x):
        """x, moved."""
        h = self.act1(self.norm1(self.wider(x)))
        h = self.squeeze(self.act2(self.norm2(self.deep(h))))
        h = self.norm3(self.narrower(h))
        return x + h if self.how.adds else h


class Student(nn.Module):
    """A small net, and the layer that turns its channels into the teacher's."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.enter, self.norm, self.act = (
            Conv(1, _CHANNELS, 3, 2, 1, bias=False),
            Norm(_CHANNELS),
            Act(how),
        )
        self.blocks = nn.ModuleList(Block(how) for _ in range(2))
        self.head, self.regress = nn.Linear(_CHANNELS, 10), Conv(_CHANNELS, _WIDE, 1)
        ways = {"pointwise": how.pointwise, "depthwise": how.depthwise}
        for module in self.modules():
            if isinstance(module, Conv):
                module.way = ways["depthwise" if module.groups > 1 else "pointwise"]
            if isinstance(module, Norm):
                module.way = how.norming

    def forward(self, x):
        """Logits, what a channel is on average, and the hint of the teacher's channels."""
        how = self.how
        x = self.act(self.norm(self.enter(x)))
        for block in self.blocks:
            x = block(x)
        if how.pooled == "most":
            pooled = x.amax((2, 3))
        elif how.pool == "torch":
            pooled = x.mean((2, 3))
        else:
            pooled = x.flatten(2) @ torch.full(
                (x[0, 0].numel(),), 1 / x[0, 0].numel(), dtype=x.dtype
            )
        hint = self.regress(x.detach() if how.hint == "detached" else x)
        return self.head(pooled), pooled, hint


class Teacher(nn.Module):
    """A wide net that is not trained any more."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.conv1, self.conv2 = nn.Conv2d(1, _WIDE, 3, 2, 1), nn.Conv2d(_WIDE, _WIDE, 3, 1, 1)
        self.norm1, self.norm2 = nn.BatchNorm2d(_WIDE), nn.BatchNorm2d(_WIDE)
        self.act1, self.act2, self.drop = nn.ReLU(), nn.ReLU(), nn.Dropout(0.2)
        self.head = nn.Linear(_WIDE, 10)
        with torch.no_grad():
            for layer, gain in ((self.conv1, 2.0), (self.conv2, 2.0), (self.head, 6.0)):
                layer.weight.mul_(gain)

    def forward(self, x):
        """Logits, what a channel is on average, and the channels themselves."""
        bent = self.act1(self.norm1(self.conv1(x)))
        plain = self.norm2(self.conv2(bent))
        bent = self.act2(plain)
        pooled = bent.mean((2, 3))
        hint = plain if self.how.hinted == "plain" else bent
        return self.head(self.drop(pooled)), pooled, hint
