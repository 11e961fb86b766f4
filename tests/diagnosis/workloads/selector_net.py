"""A selective state-space language model: what its states keep depends on what is read."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_WIDTH, _INNER, _STATES, _RANK, _TAPS = 16, 24, 4, 3, 4
_CHUNK = 8
"""Places after which a truncated scan forgets where its state comes from."""


class Conv(nn.Conv1d):
    """A depthwise convolution that sees the past alone."""

    def __init__(self, how) -> None:
        super().__init__(_INNER, _INNER, _TAPS, groups=_INNER, padding=_TAPS - 1)
        self.how = how

    def forward(self, x):
        """x (batch, channel, place), each place mixed with the three before it."""
        size = x.shape[2]
        if self.how.conv == "taps":
            x = functional.pad(x, (_TAPS - 1, 0))
            taps = (self.weight[:, :, tap] * x[..., tap : tap + size] for tap in range(_TAPS))
            return sum(taps) + self.bias[:, None]
        x = super().forward(x)
        return x[..., :size] if self.how.cuts == "end" else x[..., -size:]


class Recurrence(torch.autograd.Function):
    """All states of a linear recurrence over places, with its backward as a scan from the end."""

    @staticmethod
    def forward(ctx, decay, fed):
        """decay, fed: (batch, place, channel, state)."""
        states, state = torch.empty_like(fed), torch.zeros_like(fed[:, 0])
        for at in range(fed.shape[1]):
            state = torch.addcmul(fed[:, at], decay[:, at], state)
            states[:, at] = state
        ctx.save_for_backward(decay, states)
        return states

    @staticmethod
    def backward(ctx, grad):
        """The gradients of decay and fed."""
        decay, states = ctx.saved_tensors
        back, after = torch.empty_like(grad), torch.zeros_like(grad[:, 0])
        for at in reversed(range(grad.shape[1])):
            back[:, at] = grad[:, at] + after
            after = back[:, at] * decay[:, at]
        before = functional.pad(states[:, :-1], (0, 0, 0, 0, 1, 0))
        return back * before, back


class Scan(nn.Module):
    """The states' way through the text, and what is read from them."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        rates = torch.arange(1, _STATES + 1, dtype=torch.get_default_dtype())
        self.A_log = nn.Parameter(rates.log().repeat(_INNER, 1))
        self.D = nn.Parameter(torch.ones(_INNER))
        self.cache = None

    def forward(self, x, delta, b, c):
        """x, delta: a number for each channel; b, c: for each state."""
        with torch.autocast("cpu", enabled=False):
            x, delta, b, c = (part.to(self.D.dtype) for part in (x, delta, b, c))
            a = -self.A_log.exp() if self.how.rates == "exp" else -self.A_log
            steps = delta[..., None] * a
            fed = (delta * x if self.how.euler else x)[..., None] * b[..., None, :]
            if self.how.scan == "quadratic":
                return self._quadratic(steps, fed, c) + self.D * x
            if self.how.scan == "function":
                states = Recurrence.apply(steps.exp(), fed)
            elif self.how.scan == "parallel":
                states = self._parallel(steps.exp(), fed)
            else:
                states = self._loop(steps.exp(), fed)
            return torch.einsum("...dn,...n->...d", states, c) + self.D * x

    def _loop(self, decay, fed):
        """All states, one after the other."""
        axis = 1 if self.how.major == "batch" else 0
        kept = self.how.carries and self.cache is not None
        state = self.cache if kept else torch.zeros_like(fed.select(axis, 0))
        found = []
        for at, (factor, new) in enumerate(zip(decay.unbind(axis), fed.unbind(axis), strict=True)):
            if self.how.truncates and at % _CHUNK == 0:
                state = state.detach()
            after = factor * state + new
            found.append(after if self.how.reads == "after" else state)
            state = after
        if self.how.carries:
            self.cache = state.detach()
        return torch.stack(found, axis)

    def _parallel(self, decay, fed):
        """All states, by doubling how far each place looks back."""
        far = 1
        while far < fed.shape[1]:
            before = functional.pad(fed[:, :-far], (0, 0, 0, 0, far, 0))
            fed = fed + decay * before
            decay = decay * functional.pad(decay[:, :-far], (0, 0, 0, 0, far, 0), value=1.0)
            far *= 2
        return fed

    def _quadratic(self, steps, fed, c):
        """What is read, as attention of each place to those before it, without any states."""
        total = steps.cumsum(1)
        size = total.shape[1]
        later = torch.ones(size, size, dtype=torch.bool).triu(1)[:, :, None, None]
        kept = (total[:, :, None] - total[:, None]).masked_fill(later, -math.inf).exp()
        return torch.einsum("btn,btsdn,bsdn->btd", c, kept, fed)


class Mixer(nn.Module):
    """The selective state space, between two projections, with a gate."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.in_proj = nn.Linear(_WIDTH, 2 * _INNER, bias=False)
        self.conv1d, self.act = Conv(how), nn.SiLU()
        self.x_proj = nn.Linear(_INNER, _RANK + 2 * _STATES, bias=False)
        self.dt_proj, self.softplus = nn.Linear(_RANK, _INNER), nn.Softplus()
        self.scan = Scan(how)
        self.gate = nn.SiLU()
        self.out_proj = nn.Linear(_INNER, _WIDTH, bias=False)
        low, high = math.log(0.01), math.log(0.3)
        first = (torch.rand(_INNER) * (high - low) + low).exp()
        with torch.no_grad():  # so that softplus gives these
            self.dt_proj.bias.copy_(first + (-(-first).expm1()).log())
            if how.begins == "zeros":
                self.dt_proj.bias.zero_()

    def forward(self, x):
        """x, mixed along the places."""
        x, z = self.in_proj(x).chunk(2, -1)
        if self.how.major == "batch":
            x = self.conv1d(x.transpose(1, 2)).transpose(1, 2)
        else:
            x = self.conv1d(x.permute(1, 2, 0)).permute(2, 0, 1)
        x = self.act(x)
        low, b, c = self.x_proj(x).split((_RANK, _STATES, _STATES), -1)
        rate = self.dt_proj(low)
        if self.how.biases == "twice":
            rate = rate + self.dt_proj.bias
        return self.out_proj(self.scan(x, self.softplus(rate), b, c) * self.gate(z))


class Block(nn.Module):
    """A norm and a mixer, added to what they were given."""

    def __init__(self, how) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(_WIDTH, eps=1e-5)
        self.mixer = Mixer(how)

    def forward(self, x):
        """x, moved."""
        return x + self.mixer(self.norm(x))


class Model(nn.Module):
    """Embedding, blocks, a last norm, and a head whose weight is the embedding's."""

    def __init__(self, how, words: int) -> None:
        super().__init__()
        self.how = how
        self.embedding = nn.Embedding(words, _WIDTH)
        nn.init.normal_(self.embedding.weight, std=0.25)
        self.blocks = nn.ModuleList(Block(how) for _ in range(2))
        self.norm = nn.RMSNorm(_WIDTH, eps=1e-5)
        self.head = nn.Linear(_WIDTH, words, bias=False)
        if how.tied:
            self.head.weight = self.embedding.weight
        else:
            with torch.no_grad():
                self.head.weight.copy_(self.embedding.weight)

    def forward(self, tokens, real):
        """Logits of all places (batch, place, word), or of the real ones alone (place, word)."""
        x = self.embedding(tokens if self.how.major == "batch" else tokens.T)
        for block in self.blocks:
            if self.how.keeps == "all" or not torch.is_grad_enabled():
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=False)
        x = x if self.how.major == "batch" else x.transpose(0, 1)
        return self.head(self.norm(x if self.how.heads == "all" else x[real]))
