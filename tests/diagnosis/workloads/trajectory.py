"""A causal transformer over returns, states and actions, which tells what is done in each state."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

STATE, ACTION, LONG = 6, 2, 6
"""Numbers of a state and of an action, and the places of a trajectory."""
_WIDTH, _HEADS, _FAR = 16, 2, 10


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
        moved = wide - wide.mean(-1, keepdim=True)
        spread = moved.square().mean(-1, keepdim=True)
        return moved / (spread + self.eps).sqrt() * self.weight + self.bias


class Far(nn.Module):
    """What is added to a score, for each head, by how far back a key lies."""

    def __init__(self, how, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(_FAR, _HEADS) * 0.5)
        places = torch.arange(count)
        back = places[:, None] - places if how.distance == "back" else places - places[:, None]
        self.register_buffer("back", back.clamp(0, _FAR - 1))

    def forward(self):
        """The bias (head, query, key)."""
        return self.weight[self.back].permute(2, 0, 1)


class Attention(nn.Module):
    """Attention to what may be seen, with a bias by distance."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.q, self.k, self.v, self.out = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))
        self.far = Far(how, 3 * LONG)

    def forward(self, x, seen):
        """x, mixed; seen (sample, 1, query, key)."""
        how, bias = self.how, self.far()
        q, k, v = (part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in self._parts(x))
        if how.attention == "torch":
            bias = bias.to(q.dtype).masked_fill(~seen, -math.inf)
            mixed = functional.scaled_dot_product_attention(q, k, v, bias)
        else:
            mixed = self._weights(q, k, bias, seen).to(v.dtype) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _parts(self, x):
        if self.how.packing == "apart":
            return self.q(x), self.k(x), self.v(x)
        weight = torch.cat((self.q.weight, self.k.weight, self.v.weight))
        bias = torch.cat((self.q.bias, self.k.bias, self.v.bias))
        return functional.linear(x, weight, bias).chunk(3, -1)

    def _weights(self, q, k, bias, seen):
        how, root = self.how, math.sqrt(_WIDTH // _HEADS)
        if how.scores == "einsum":
            scores = torch.einsum("nhqd,nhkd->nhqk", q / root, k) + bias
        elif how.root == "scores":
            scores = q @ k.transpose(-1, -2) / root + bias
        else:
            scores = (q @ k.transpose(-1, -2) + bias) / root
        scores = scores.masked_fill(~seen, -math.inf)
        return scores.softmax(-1 if how.over == "keys" else -2)


class Block(nn.Module):
    """Attention and two layers, each added to what it was given."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.norm1, self.norm2 = Norm(how), Norm(how)
        self.attention = Attention(how)
        self.up, self.down = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH)
        self.drop1, self.drop2 = nn.Dropout(how.dropout), nn.Dropout(how.dropout)

    def forward(self, x, seen):
        """x, moved."""
        x = x + self.drop1(self.attention(self.norm1(x), seen))
        return x + self.drop2(self.down(functional.gelu(self.up(self.norm2(x)))))


class Woven(nn.Module):
    """Tokens of returns, states and actions in turn, with what tells the time added."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.of_return, self.of_state = nn.Linear(1, _WIDTH), nn.Linear(STATE, _WIDTH)
        self.of_action, self.times = nn.Linear(ACTION, _WIDTH), nn.Embedding(LONG + 1, _WIDTH)
        nn.init.normal_(self.times.weight, std=how.spread)

    def forward(self, returns, states, actions, times):
        """The tokens (sample, 3 × place, width)."""
        when = self.times(times + self.how.since)
        kinds = [self.of_return(returns), self.of_state(states), self.of_action(actions)]
        if self.how.timed == "at once":
            return (torch.stack(kinds, 2) + when[:, :, None]).flatten(1, 2)
        which = range(3) if self.how.timed == "all" else (1,)
        return self._woven([one + when if at in which else one for at, one in enumerate(kinds)])

    def _woven(self, kinds):
        if self.how.weave == "stack":
            return torch.stack(kinds, 2).flatten(1, 2)
        if self.how.weave == "cat":
            return torch.cat(kinds, 1)
        woven = torch.zeros_like(torch.cat(kinds, 1))
        for at, kind in enumerate(kinds):
            woven[:, at::3] = kind
        return woven


class Planner(nn.Module):
    """Actions that are told of what came before them."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.woven = Woven(how)
        self.blocks = nn.ModuleList(Block(how) for _ in range(2))
        self.norm, self.act = Norm(how), nn.Linear(_WIDTH, ACTION)

    def forward(self, returns, states, actions, times, valid):
        """An action for each place."""
        x, seen = self.woven(returns, states, actions, times), self._seen(valid)
        for block in self.blocks:
            if self.how.keeps == "all":
                x = block(x, seen)
            else:
                x = checkpoint(block, x, seen, use_reentrant=False)
        x = self.norm(x[:, self.how.reads :: 3])
        told = self.act(x)
        if self.how.bounded == "sigmoid":
            return 2 * torch.sigmoid(2 * told) - 1
        return told.tanh()

    def _seen(self, valid):
        """Which keys each query sees: itself, and what is no padding and not later."""
        whole = torch.ones(3 * LONG, 3 * LONG, dtype=torch.bool)
        itself = torch.eye(3 * LONG, dtype=torch.bool)
        causal = whole.tril(self.how.ahead) if self.how.causal else whole.triu()
        if not self.how.masks:
            return causal.expand(len(valid), 1, -1, -1)
        keys = valid.bool().repeat_interleave(3, 1)[:, None, None]
        return causal & (keys | itself)
