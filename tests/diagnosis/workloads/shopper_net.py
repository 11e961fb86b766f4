"""Self-attention over what a user bought: the embeddings of items also score what comes next."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

ITEMS, LONGEST = 40, 12
"""Items there are, 0 being padding; and how much of a history is read."""
_WIDTH, _HEADS, _BLOCKS = 16, 2, 2
_NORM_EPS = 1e-8


class Tokens(nn.Module):
    """Items and where they stand, counted back from the newest."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.positions = nn.Embedding(LONGEST + 1, _WIDTH, padding_idx=0)
        self.drop = nn.Dropout(how.dropout)

    def forward(self, items, seen):
        """The tokens (user, place, width); those of padding are zeros."""
        places = torch.arange(LONGEST - seen.shape[1], LONGEST) + 1
        if self.how.scales:
            items = items * math.sqrt(_WIDTH)
        x = self.drop(items + self.positions(places * seen))
        return x * seen[..., None]


class Attention(nn.Module):
    """Attention of normed queries to keys and values of each user's past."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.q, self.k, self.v, self.out = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))
        self.drop = nn.Dropout(how.dropout)

    def forward(self, queries, x, seen, allowed):
        """What each place takes from the places that it is allowed to see."""
        parts = self.q(queries), self.k(x), self.v(x)
        if self.how.packing == "padded":
            q, k, v = (part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in parts)
            return self.out(self._mixed(q, k, v, allowed).transpose(1, 2).flatten(2))
        q, k, v = (part[seen].unflatten(-1, (_HEADS, -1)).transpose(0, 1) for part in parts)
        user = seen.nonzero()[:, 0]
        same = (user[:, None] == user).tril()
        mixed = self._mixed(q, k, v, same).transpose(0, 1).flatten(1)
        return self.out(mixed.new_zeros(queries.shape).index_put((seen,), mixed))

    def _mixed(self, q, k, v, allowed):
        scores = q @ k.transpose(-1, -2) / math.sqrt(_WIDTH // _HEADS)
        if self.how.masking == "filled":
            scores = scores.masked_fill(~allowed, -math.inf)
        else:
            scores = scores + torch.zeros_like(scores).masked_fill(~allowed, -1e9)
        return self.drop(scores.softmax(-1)) @ v


class Pointwise(nn.Linear):
    """A linear layer of each place, as such or as a convolution over one place."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTH, _WIDTH)
        self.how = how

    def forward(self, x):
        """x (user, place, width), mapped."""
        if self.how.pointwise == "linear":
            return super().forward(x)
        mapped = functional.conv1d(x.transpose(1, 2), self.weight[..., None], self.bias)
        return mapped.transpose(1, 2).contiguous()


class Block(nn.Module):
    """Attention and two pointwise layers, each added to its normed input."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.norm1, self.norm2 = (nn.LayerNorm(_WIDTH, _NORM_EPS) for _ in range(2))
        self.attention = Attention(how)
        self.inner, self.outer = Pointwise(how), Pointwise(how)
        self.drop1, self.drop2 = nn.Dropout(how.dropout), nn.Dropout(how.dropout)

    def forward(self, x, seen, allowed):
        """x, moved; padding stays zeros."""
        queries = self.norm1(x)
        keys = queries if self.how.norms == "all" else x
        x = self.norm2(queries + self.attention(queries, keys, seen, allowed))
        x = x + self.drop2(self.outer(self.drop1(self.inner(x)).relu()))
        return x * seen[..., None]


class Net(nn.Module):
    """Scores of items at each place of a history."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.items = nn.Embedding(ITEMS + 1, _WIDTH, padding_idx=0)
        self.tokens = Tokens(how)
        self.blocks = nn.ModuleList(Block(how) for _ in range(_BLOCKS))
        self.norm = nn.LayerNorm(_WIDTH, _NORM_EPS)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_normal_(parameter)
        with torch.no_grad():
            self.items.weight[0] = 0
            self.tokens.positions.weight[0] = 0

    def forward(self, history, positives, negatives):
        """Scores of what came next (user, place), and of what did not (user, place, negative)."""
        seen = history > 0
        allowed = self._allowed(seen)
        x = self.tokens(self.items(history), seen)
        for block in self.blocks:
            if self.how.keeps == "all" or not torch.is_grad_enabled():
                x = block(x, seen, allowed)
            else:
                x = checkpoint(block, x, seen, allowed, use_reentrant=False)
        return self._scores(self.norm(x), positives, negatives)

    def _allowed(self, seen):
        """Which keys (user, 1, query, key) each query sees; padding sees itself."""
        count = seen.shape[1]
        past = torch.ones(count, count, dtype=torch.bool).tril(self.how.ahead)
        if self.how.keys == "seen":
            past = past & seen[:, None, None, :]
        else:
            past = past.expand(len(seen), 1, count, count)
        return past | torch.eye(count, dtype=torch.bool)

    def _scores(self, x, positives, negatives):
        if self.how.scoring == "all":
            scores = x @ self.items.weight.T
            return scores.gather(2, positives[..., None])[..., 0], scores.gather(2, negatives)
        right, wrong = self.items(positives), self.items(negatives)
        if self.how.tied == "detached":
            right, wrong = right.detach(), wrong.detach()
        return (x * right).sum(-1), (x[:, :, None] * wrong).sum(-1)
