"""A language model without attention: token shift, decaying weighted means, and gates."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_WIDTH, _WIDE, _LAYERS = 24, 72, 2
_LEAST = -1e38
"""The logarithm of the weight of what was never read."""


def recurrence(how, decay, bonus, keys, values):
    """The weighted mean of all values up to each place, by a state that keeps its maximum apart.

    A value's weight is exp(key + decay · age), at its own place exp(key + bonus). The state holds
    numerator and denominator as multiples of the exponential of the largest logarithm so far.
    """
    over = under = torch.zeros_like(keys[:, 0])
    most, found = torch.full_like(over, _LEAST), []
    for key, value in zip(keys.unbind(1), values.unbind(1), strict=True):
        aged = most + decay
        seen = aged if how.ages == "before" else most
        new = torch.maximum(seen, bonus + key)
        old_part, own_part = torch.exp(seen - new), torch.exp(bonus + key - new)
        found.append((old_part * over + own_part * value) / (old_part * under + own_part))
        kept = key + bonus if how.keeps == "bonus" else key
        new = torch.maximum(aged, kept)
        old_part, own_part = torch.exp(aged - new), torch.exp(kept - new)
        over, under, most = old_part * over + own_part * value, old_part * under + own_part, new
    return torch.stack(found, 1)


def plain(decay, bonus, keys, values):
    """The same mean, with weights as they are."""
    over = under = torch.zeros_like(keys[:, 0])
    fades, weights, owns, found = decay.exp(), keys.exp(), (bonus + keys).exp(), []
    for weight, own, value in zip(weights.unbind(1), owns.unbind(1), values.unbind(1), strict=True):
        found.append((over + own * value) / (under + own))
        over, under = fades * over + weight * value, fades * under + weight
    return torch.stack(found, 1)


def shares(decay, bonus, keys):
    """How much of each place's mean each place is (document, to, from, channel)."""
    places = torch.arange(keys.shape[1])
    ages = (places[:, None] - 1 - places)[..., None]
    scores = torch.where(ages < 0, bonus, ages * decay) + keys[:, None]
    return scores.masked_fill(ages < -1, -math.inf).softmax(2)


class Recurrence(torch.autograd.Function):
    """The recurrence, with a backward in closed form."""

    @staticmethod
    def forward(ctx, how, decay, bonus, keys, values):
        """The weighted means."""
        found = recurrence(how, decay, bonus, keys, values)
        ctx.save_for_backward(decay, bonus, keys, values, found)
        return found

    @staticmethod
    def backward(ctx, grad):
        """The gradients of decay, bonus, keys and values."""
        decay, bonus, keys, values, found = ctx.saved_tensors
        weights = shares(decay, bonus, keys) * grad[:, :, None]
        scores = weights * (values[:, None] - found[:, :, None])
        places = torch.arange(keys.shape[1])
        ages = (places[:, None] - 1 - places).clamp(min=0).to(scores.dtype)
        by_decay = torch.einsum("btic,ti->c", scores, ages)
        by_bonus = scores.diagonal(dim1=1, dim2=2).sum((0, 2))
        return None, by_decay, by_bonus, scores.sum(1), weights.sum(1)


class Shifting(nn.Module):
    """What sees the token before beside each token, channel by channel in another ratio."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def shifted(self, x):
        """The token before each, zeros before the first."""
        if self.how.shift == "cat":
            return torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), 1)
        ends = (0, 0, 0, 0, 1, -1) if self.how.shift == "documents" else (0, 0, 1, -1)
        return functional.pad(x, ends)

    def mixed(self, x, before, ratio):
        """So much of x, the rest of what came before."""
        if self.how.mixing == "lerp":
            return torch.lerp(before, x, ratio.to(x.dtype))
        return x * ratio + before * (1 - ratio)


class TimeMix(Shifting):
    """Means over the past, each channel with a decay of its own, behind a gate."""

    def __init__(self, how, layer: int) -> None:
        super().__init__(how)
        channel, depth = torch.arange(_WIDTH), layer / (_LAYERS - 1)
        rising, place = 1 - layer / _LAYERS, channel / _WIDTH
        speed = -5 + 6 * (channel / (_WIDTH - 1)) ** (0.7 + 1.3 * depth)
        self.time_decay = nn.Parameter(speed)
        self.time_first = nn.Parameter(math.log(0.3) + ((channel + 1) % 3 - 1) * 0.5)
        self.time_mix_k = nn.Parameter(place**rising)
        self.time_mix_v = nn.Parameter(place**rising + 0.3 * depth)
        self.time_mix_r = nn.Parameter(place ** (0.5 * rising))
        self.key, self.value, self.receptance, self.output = (
            nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(4)
        )

    def forward(self, x):
        """x, mixed over places."""
        keys, values, gates = self._parts(x)
        gates = gates.sigmoid() if self.how.gate == "sigmoid" else gates
        means = self._means(*(part.to(self.time_decay.dtype) for part in (keys, values)))
        return self.output(gates * means)

    def _parts(self, x):
        ratios = self.time_mix_k, self.time_mix_v, self.time_mix_r
        layers = self.key, self.value, self.receptance
        pairs = list(zip(layers, ratios, strict=True))
        if self.how.projections == "linear":
            before = self.shifted(x)
            return [layer(self.mixed(x, before, ratio)) for layer, ratio in pairs]
        kernels = [
            torch.stack((one.weight * (1 - ratio), one.weight * ratio), 2) for one, ratio in pairs
        ]
        x = functional.pad(x.transpose(1, 2), (1, 0))
        return functional.conv1d(x, torch.cat(kernels)).transpose(1, 2).chunk(3, -1)

    def _means(self, keys, values):
        how, bonus = self.how, self.time_first
        decay = -self.time_decay.exp() if how.decay == "exp" else self.time_decay
        if how.wkv == "attention":
            return torch.einsum("btic,bic->btc", shares(decay, bonus, keys), values)
        if how.wkv == "plain":
            return plain(decay, bonus, keys, values)
        if how.wkv == "function":
            return Recurrence.apply(how, decay, bonus, keys, values)
        return recurrence(how, decay, bonus, keys, values)


class ChannelMix(Shifting):
    """Two layers with a squared ReLU between them, behind a gate."""

    def __init__(self, how, layer: int) -> None:
        super().__init__(how)
        place = (torch.arange(_WIDTH) / _WIDTH) ** (1 - layer / _LAYERS)
        self.time_mix_k, self.time_mix_r = nn.Parameter(place), nn.Parameter(place.clone())
        self.key = nn.Linear(_WIDTH, _WIDE, bias=False)
        self.receptance = nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.value = nn.Linear(_WIDE, _WIDTH, bias=False)

    def forward(self, x):
        """x, mixed over channels."""
        before = self.shifted(x)
        key = self.key(self.mixed(x, before, self.time_mix_k)).relu()
        gate = self.receptance(self.mixed(x, before, self.time_mix_r)).sigmoid()
        return gate * self.value(key.square() if self.how.squares else key)


class Block(nn.Module):
    """Time mixing and channel mixing, each added to what it was given."""

    def __init__(self, how, layer: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.att, self.ffn = TimeMix(how, layer), ChannelMix(how, layer)

    def forward(self, x):
        """x, moved."""
        x = x + self.att(self.ln1(x))
        return x + self.ffn(self.ln2(x))


class RWKV(nn.Module):
    """The logits of each next token; the head's weight is that of the embeddings."""

    def __init__(self, how, vocabulary: int) -> None:
        super().__init__()
        self.how = how
        self.emb, self.ln0 = nn.Embedding(vocabulary, _WIDTH), nn.LayerNorm(_WIDTH)
        self.blocks = nn.ModuleList(Block(how, layer) for layer in range(_LAYERS))
        self.ln_out = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.orthogonal_(module.weight, gain=0.7)
        nn.init.normal_(self.emb.weight, std=0.1)
        self.head.weight = self.emb.weight

    def forward(self, tokens):
        """Logits (document, place, token)."""
        x = self.ln0(self.emb(tokens))
        for block in self.blocks:
            if self.how.again and torch.is_grad_enabled():
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(self.ln_out(x))


class L2Wrap(torch.autograd.Function):
    """The loss as it is, with a gradient that draws each place's largest logit to zero."""

    @staticmethod
    def forward(ctx, loss, logits, weights):
        """The loss."""
        ctx.save_for_backward(logits, weights)
        return loss.clone()

    @staticmethod
    def backward(ctx, grad):
        """The gradient of the loss, and that of the logits."""
        logits, weights = ctx.saved_tensors
        most, places = logits.max(-1, keepdim=True)
        pull = torch.zeros_like(logits).scatter_(-1, places, grad * weights[..., None] * most)
        return grad, pull, None
