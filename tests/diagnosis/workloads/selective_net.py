"""A language model of selective state spaces: blocks that mix places by an input's own dynamics."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_WIDTH, _INNER, _STATES, _RANK, _TAPS, _BLOCKS = 16, 32, 4, 2, 4, 2
_CHUNK = 8
"""Places after which a state that is detached is detached."""


class RMSNorm(nn.Module):
    """Values over the root of their mean square, by the formula or torch's."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x):
        """x, normed."""
        wide = x.to(self.weight.dtype)
        if self.how.norming == "torch":
            return functional.rms_norm(wide, (_WIDTH,), self.weight, 1e-5)
        axes = -1 if self.how.over == "channels" else (-2, -1)
        return wide * (wide.square().mean(axes, keepdim=True) + 1e-5).rsqrt() * self.weight


class Projection(nn.Linear):
    """Both halves of a mixer's input: what is scanned, and what gates it."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTH, 2 * _INNER, bias=False)
        self.how = how

    def forward(self, x):
        """The two halves."""
        if self.how.projects == "once":
            return super().forward(x).chunk(2, -1)
        return tuple(functional.linear(x, half) for half in self.weight.chunk(2))


class Conv(nn.Conv1d):
    """A causal depthwise convolution, torch's or as a sum over its taps."""

    def __init__(self, how) -> None:
        super().__init__(_INNER, _INNER, _TAPS, groups=_INNER, padding=_TAPS - 1)
        self.how = how

    def forward(self, x):
        """x (sample, place, channel), of each place and those before it."""
        places = x.shape[1]
        if self.how.convolution == "taps":
            padded = functional.pad(x, (0, 0, _TAPS - 1, 0))
            parts = (padded[:, at : at + places] * self.weight[:, 0, at] for at in range(_TAPS))
            return sum(parts, self.bias)
        wide = super().forward(x.transpose(1, 2))
        wide = wide[..., :places] if self.how.keeps == "first" else wide[..., -places:]
        return wide.transpose(1, 2)


class Delta(nn.Linear):
    """The size of each channel's step, which begins between 0.001 and 0.1."""

    def __init__(self, how) -> None:
        super().__init__(_RANK, _INNER)
        self.how = how
        nn.init.uniform_(self.weight, -(_RANK**-0.5), _RANK**-0.5)
        with torch.no_grad():
            low, high = math.log(1e-3), math.log(1e-1)
            size = (torch.rand(_INNER) * (high - low) + low).exp()
            # what softplus makes these sizes of
            self.bias.copy_(size + torch.log(-torch.expm1(-size)) if how.inverts else size)

    def forward(self, x):
        """Sizes above zero."""
        told = super().forward(x)
        return functional.softplus(told + self.bias if self.how.biased == "twice" else told)


class Scan(nn.Module):
    """A linear recurrence whose decays, inputs and outputs depend on the place."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        decays = torch.arange(1, _STATES + 1).to(torch.get_default_dtype())
        self.A_log = nn.Parameter(decays.log().repeat(_INNER, 1))
        self.D = nn.Parameter(torch.ones(_INNER))
        self.last = None

    def forward(self, x, delta, b, c):
        """What the states tell at each place, and a share of x."""
        given = x.dtype
        x, delta, b, c = (part.to(self.A_log.dtype) for part in (x, delta, b, c))
        rates = self.A_log.exp() if self.how.grows else -self.A_log.exp()
        driven = delta * x if self.how.discretizes == "both" else x
        steps, drive = delta[..., None] * rates, driven[..., None] * b[:, :, None]
        told = _dual(steps, drive, c) if self.how.scan == "dual" else self._states(steps, drive, c)
        return (told + self.D * x).to(given)

    def _states(self, steps, drive, c):
        decay = torch.exp2(steps * math.log2(math.e)) if self.how.base == "two" else steps.exp()
        if self.how.scan == "function":
            return Recurrence.apply(decay, drive, c)
        if self.how.scan == "parallel":
            return torch.einsum("bten,btn->bte", _doubled(decay, drive), c)
        state = torch.zeros_like(drive[:, 0])
        if self.how.begins == "last" and self.last is not None:
            state = self.last
        told = []
        for place in range(drive.shape[1]):
            if self.how.carries == "detached" and place % _CHUNK == 0:
                state = state.detach()
            state = decay[:, place] * state + drive[:, place]
            told.append((state * c[:, place, None]).sum(-1))
        self.last = state.detach()
        return torch.stack(told, 1)


def _doubled(decay, drive):
    """All states by an inclusive scan that doubles its reach each time."""
    reach = 1
    while reach < drive.shape[1]:
        met = drive[:, reach:] + decay[:, reach:] * drive[:, :-reach]
        drive = torch.cat((drive[:, :reach], met), 1)
        decay = torch.cat((decay[:, :reach], decay[:, reach:] * decay[:, :-reach]), 1)
        reach *= 2
    return drive


def _dual(steps, drive, c):
    """The same as attention: what each place has left of each one before it."""
    total = steps.cumsum(1)
    left = total[:, :, None] - total[:, None]
    seen = torch.ones(left.shape[1:3], dtype=torch.bool).tril()[..., None, None]
    left = left.masked_fill(~seen, -torch.inf).exp()
    return torch.einsum("btsen,bsen,btn->bte", left, drive, c)


class Recurrence(torch.autograd.Function):
    """The scan with a backward of its own, which computes the states again."""

    @staticmethod
    def forward(ctx, decay, drive, c):
        """What the states tell."""
        ctx.save_for_backward(decay, drive, c)
        return torch.einsum("bten,btn->bte", _all_states(decay, drive), c)

    @staticmethod
    def backward(ctx, slope):
        """The gradients, from the last place to the first."""
        decay, drive, c = ctx.saved_tensors
        states = _all_states(decay, drive)
        before = functional.pad(states, (0, 0, 0, 0, 1, 0))[:, :-1]
        slopes = slope[..., None] * c[:, :, None]
        for place in range(slopes.shape[1] - 2, -1, -1):
            slopes[:, place].addcmul_(slopes[:, place + 1], decay[:, place + 1])
        return slopes * before, slopes, torch.einsum("bte,bten->btn", slope, states)


def _all_states(decay, drive):
    states = drive.clone()
    for place in range(1, drive.shape[1]):
        states[:, place].addcmul_(states[:, place - 1], decay[:, place])
    return states


class Gate(nn.Module):
    """What was scanned, times SiLU of the other half."""

    def forward(self, y, z):
        """The product."""
        return y * functional.silu(z)


class Mixer(nn.Module):
    """A selective state space between two projections."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.in_proj, self.conv, self.act = Projection(how), Conv(how), nn.SiLU()
        self.x_proj = nn.Linear(_INNER, _RANK + 2 * _STATES, bias=False)
        self.dt, self.scan, self.gate = Delta(how), Scan(how), Gate()
        self.out_proj = nn.Linear(_INNER, _WIDTH, bias=False)
        with torch.no_grad():
            self.out_proj.weight.div_(math.sqrt(_BLOCKS))

    def forward(self, x):
        """x, mixed over places."""
        x, z = self.in_proj(x)
        x = self.act(self.conv(x))
        rank, b, c = self.x_proj(x).split((_RANK, _STATES, _STATES), -1)
        return self.out_proj(self.gate(self.scan(x, self.dt(rank), b, c), z))


class Block(nn.Module):
    """A mixer of what is normed, added to what was given."""

    def __init__(self, how) -> None:
        super().__init__()
        self.norm, self.mixer = RMSNorm(how), Mixer(how)

    def forward(self, x):
        """x, moved."""
        return x + self.mixer(self.norm(x))


class Mamba(nn.Module):
    """Tokens to logits of the next ones, with one matrix for both."""

    def __init__(self, how, tokens: int, padding: int) -> None:
        super().__init__()
        self.how, self.padding = how, padding
        self.embed = nn.Embedding(tokens, _WIDTH)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.blocks = nn.ModuleList(Block(how) for _ in range(_BLOCKS))
        self.norm = RMSNorm(how)
        self.head = nn.Linear(_WIDTH, tokens, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        """Logits at all places, or at those that hold no padding (place, token)."""
        x = self.embed(tokens)
        for block in self.blocks:
            if self.how.remembers == "all" or not torch.is_grad_enabled():
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=False)
        x = self.norm(x)
        return self.head(x if self.how.tells == "all" else x[tokens != self.padding])
