"""A decoder whose queries share keys and values, with parallel blocks and tied embeddings."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_WIDTH, _HEADS, _SHARED, _WIDE = 16, 4, 2, 24
_SIZE, _EACH = _WIDTH // _HEADS, _HEADS // _SHARED


class Norm(nn.Module):
    """Division by the root of the mean square, and a weight for each channel."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x):
        """x, normed."""
        how = self.how
        if how.centres:
            x = x - x.mean(-1, keepdim=True)
        if how.norming == "torch":
            return functional.rms_norm(x, (_WIDTH,), self.weight, how.norm_eps)
        wide = x.to(self.weight.dtype)
        return wide / (wide.square().mean(-1, keepdim=True) + how.norm_eps).sqrt() * self.weight


class Attention(nn.Module):
    """Attention to what came before; each key and value serves several queries."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.q = nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.k = nn.Linear(_WIDTH, _SHARED * _SIZE, bias=False)
        self.v = nn.Linear(_WIDTH, _SHARED * _SIZE, bias=False)
        self.out = nn.Linear(_WIDTH, _WIDTH, bias=False)

    def forward(self, x, sees):
        """x, mixed; sees (sample, 1, query, key) says which keys count."""
        how = self.how
        q, k, v = (
            part(x).unflatten(-1, (-1, _SIZE)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        bias = torch.zeros((), dtype=q.dtype)
        if how.places == "rotary":
            q, k = self._rotated(q), self._rotated(k)
        else:
            bias = self._far(x.shape[1])
        bias = torch.where(sees, bias, torch.finfo(x.dtype).min)
        mixed = getattr(self, f"_{how.attention}")(q, k, v, bias)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _plain(self, q, k, v, bias):
        """Scores, softmax and sum, of keys and values that are repeated for each query."""
        k, v = self._repeated(k), self._repeated(v)
        scores = q @ k.transpose(-1, -2) * _SIZE**-0.5 + bias
        return scores.softmax(-1).to(v.dtype) @ v

    def _torch(self, q, k, v, bias):
        k, v = self._repeated(k), self._repeated(v)
        return functional.scaled_dot_product_attention(q, k, v, bias.to(q.dtype))

    def _grouped(self, q, k, v, bias):
        """The same, of queries in groups, and of keys and values as they are."""
        q = q.unflatten(1, (_SHARED, _EACH))
        scores = torch.einsum("ngeqs,ngks->ngeqk", q, k) * _SIZE**-0.5
        scores = scores.flatten(1, 2) + bias
        shares = scores.softmax(-1).unflatten(1, (_SHARED, _EACH))
        return torch.einsum("ngeqk,ngks->ngeqs", shares.to(v.dtype), v).flatten(1, 2)

    def _repeated(self, x):
        if self.how.repeats == "each":
            return x.repeat_interleave(_EACH, 1)
        if self.how.repeats == "expand":
            return x[:, :, None].expand(-1, -1, _EACH, -1, -1).flatten(1, 2)
        return x.repeat(1, _EACH, 1, 1)

    def _far(self, count):
        """What a head's scores lose with distance (head, query, key)."""
        how = self.how
        heads = torch.arange(_HEADS) + (1 if how.slopes == "from one" else 0)
        slopes = 2.0 ** (-8 * heads / _HEADS)
        at = torch.arange(count).to(slopes.dtype)
        away = at if how.distance == "keys" else at - at[:, None]
        return (slopes[:, None, None] * away).expand(-1, count, -1)

    def _rotated(self, x):
        """x (sample, head, token, channel), pairs of channels turned by angles of their places."""
        how = self.how
        pairs = torch.arange(_SIZE // 2)
        angles = torch.arange(x.shape[2])[:, None] * 100.0 ** (-2 * pairs / _SIZE)
        if how.rotation == "complex":
            turned = torch.complex(*x.to(angles.dtype).chunk(2, -1))
            turned = turned * torch.polar(torch.ones_like(angles), angles)
            return torch.cat((turned.real, turned.imag), -1).to(x.dtype)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        if how.rotation == "neighbours":
            cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
        else:
            cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
        one, other = x.chunk(2, -1)
        halves = (other, -one) if how.rotation == "back" else (-other, one)
        return x * cos + torch.cat(halves, -1) * sin


class Feed(nn.Module):
    """Two layers, the first of which has a gate."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.gate, self.up = (nn.Linear(_WIDTH, _WIDE, bias=False) for _ in range(2))
        self.down = nn.Linear(_WIDE, _WIDTH, bias=False)

    def forward(self, x):
        """The second layer's output."""
        how = self.how
        if how.packing == "joined":
            both = functional.linear(x, torch.cat((self.gate.weight, self.up.weight)))
            gate, up = both.chunk(2, -1)
        else:
            gate, up = self.gate(x), self.up(x)
        if how.bent == "own":
            return self.down(gate * torch.sigmoid(gate) * up)
        return self.down({"silu": functional.silu, "sigmoid": torch.sigmoid}[how.bent](gate) * up)


class Block(nn.Module):
    """Attention and feed, both of the same normed tokens, added to the tokens."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.norm, self.attention, self.feed = Norm(how), Attention(how), Feed(how)

    def forward(self, x, sees):
        """x, moved."""
        normed = self.norm(x)
        mixed = self.attention(normed, sees)
        fed = self.feed(normed if self.how.feeds == "normed" else x)
        return x + (mixed + fed) if self.how.adding == "parts first" else x + mixed + fed


class Composer(nn.Module):
    """Tokens in, logits of the next ones out."""

    def __init__(self, how, names: int) -> None:
        super().__init__()
        self.how = how
        self.embed = nn.Embedding(names, _WIDTH)
        self.blocks = nn.ModuleList(Block(how) for _ in range(2))
        self.norm = Norm(how)
        nn.init.normal_(self.embed.weight, std=0.3)
        if how.head != "tied":
            self.head = nn.Linear(_WIDTH, names, bias=False)
            with torch.no_grad():
                self.head.weight.copy_(self.embed.weight)

    def forward(self, tokens, real):
        """Logits of tokens (sample, token), of which some are no padding."""
        how = self.how
        count = tokens.shape[1]
        sees = torch.ones(count, count, dtype=torch.bool).tril(how.ahead)
        if how.pads == "masked":
            sees = sees & real[:, None, None] | torch.eye(count, dtype=torch.bool)
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, sees, use_reentrant=False) if how.again else block(x, sees)
        x = self.norm(x)
        return functional.linear(x, self.embed.weight) if how.head == "tied" else self.head(x)
