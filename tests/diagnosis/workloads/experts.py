"""A language model of digits' pixels whose tokens go to two of four experts each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut, warmed

_LEVELS, _WIDTH, _HEADS, _SHARED, _WIDE, _EXPERTS, _LONG = 17, 32, 4, 2, 24, 4, 16
_SIZE = _WIDTH // _HEADS


@dataclass(frozen=True)
class Experts(Workload):
    """Queries have four heads and keys two; attention looks back over a window.

    norm_eps: of the norms. offset: of the places that are turned. turns: "both" queries and keys,
        or "queries". pairs: what is turned together, "halves" or "neighbours". window: how far a
        place sees. repeats: shared heads "each" in turn or as a "whole". caps: the logits' bound.
    chosen: experts a token. weights: those of the chosen, with the sum "one", "as they are", or
        "alike". routes: the router is given what is "normed" or "plain". attached: whether its
        weights' gradients flow. gates: the half of an expert's product that is bent.
    room: the tokens that an expert takes at most, 0: all.
    balance: the weight of the loss that spreads tokens; counts: the choices that it counts, of
        "all" chosen or the "first"; means: its chances, "attached" or "detached"; of: the number
        that it is multiplied by. calm: the weight of the router's other loss; squares: that one.
    parts: micro-batches a step. part_scale: what each loss is divided by, 0: rightly. balances:
        whether the balance is divided too. forgets: gradients, each "step" or "part".
        clips: once a "step" or at each "part".
    groups: whether norms do not decay. least: the rate that the schedule ends at.
    attention, norm, dispatch, softmax, packing, rotary, loss, turn: how it is written, of one
        mathematics.
    """

    steps: int = 3
    batch: int = 8
    lr: float = 4e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    norm_eps: float = 1e-6
    offset: int = 0
    turns: str = "both"
    pairs: str = "halves"
    window: int = 6
    repeats: str = "each"
    caps: float = 10.0
    chosen: int = 2
    weights: str = "one"
    routes: str = "normed"
    attached: bool = True
    gates: str = "first"
    room: int = 0
    balance: float = 0.02
    counts: str = "all"
    means: str = "attached"
    of: int = _EXPERTS
    calm: float = 1e-3
    squares: bool = True
    parts: int = 2
    part_scale: int = 0
    balances: bool = True
    forgets: str = "step"
    clip: float = 1.0
    clips: str = "step"
    groups: bool = True
    least: float = 0.1
    attention: str = "manual"
    norm: str = "own"
    dispatch: str = "gathered"
    softmax: str = "before"
    packing: str = "apart"
    rotary: str = "halves"
    loss: str = "torch"
    turn: str = "forth"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = self._optimizer(model)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, _ in self.images(seed):
                tokens = ((images.flatten(1)[:, 16 : 17 + _LONG] + 1) * 8).long()
                clear(optimizer, self)
                for (part,) in cut(self.parts, tokens):
                    if self.forgets == "part":
                        clear(optimizer, self)
                    loss = self._loss(*model(part[:, :-1]), part[:, 1:])
                    anchorlib.anchor(loss, "loss")
                    loss.backward()
                    if self.clips == "part":
                        nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()

    def _optimizer(self, model):
        named = list(model.named_parameters())
        flat = [one for _, one in named if one.ndim < 2]
        deep = [one for _, one in named if one.ndim > 1]
        return self.adam(
            [
                {"params": deep},
                {"params": flat, "weight_decay": 0.0 if self.groups else self.weight_decay},
            ]
        )

    def _rate(self, step: int) -> float:
        return self.least + (1 - self.least) * warmed(step, 2, 6)

    def _loss(self, logits, balance, targets):
        logits, targets = logits.flatten(0, 1), targets.flatten()
        if self.loss == "torch":
            told = functional.cross_entropy(logits, targets)
        else:
            told = (logits.logsumexp(1) - logits.gather(1, targets[:, None])[:, 0]).mean()
        divisor = self.part_scale or self.parts
        if self.balances:
            return (told + balance) / divisor
        return told / divisor + balance


class Norm(nn.Module):
    """A norm by the root of the mean square."""

    def __init__(self, how: Experts) -> None:
        super().__init__()
        self.how, self.weight = how, nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x):
        """x, normed."""
        how = self.how
        if how.norm == "torch":
            return functional.rms_norm(x, (_WIDTH,), self.weight, how.norm_eps)
        square = x.square().mean(-1, keepdim=True) + how.norm_eps
        x = x / square.sqrt() if how.norm == "root" else x * square.rsqrt()
        return x * self.weight


class Attention(nn.Module):
    """Attention to what stands in the window."""

    def __init__(self, how: Experts) -> None:
        super().__init__()
        self.how = how
        self.q, self.out = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(_WIDTH, _SHARED * _SIZE, bias=False) for _ in range(2))

    def forward(self, x):
        """x, mixed."""
        how = self.how
        q, k, v = (part.unflatten(-1, (-1, _SIZE)).transpose(1, 2) for part in self._parts(x))
        q, k = self._turned(q), self._turned(k) if how.turns == "both" else k
        k, v = self._repeated(k), self._repeated(v)
        at = torch.arange(_LONG)
        apart = at[:, None] - at
        seen = (apart >= 0) & (apart < how.window)
        if how.attention == "torch":
            mixed = functional.scaled_dot_product_attention(q, k, v, seen)
        else:
            scores = (q @ k.transpose(-1, -2)) * _SIZE**-0.5
            mixed = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _parts(self, x):
        if self.how.packing == "apart":
            return self.q(x), self.k(x), self.v(x)
        weight = torch.cat((self.q.weight, self.k.weight, self.v.weight))
        sizes = (_WIDTH, _SHARED * _SIZE, _SHARED * _SIZE)
        return functional.linear(x, weight).split(sizes, -1)

    def _turned(self, x):
        how = self.how
        rates = 100.0 ** (-torch.arange(0, _SIZE, 2) / _SIZE)
        angles = (torch.arange(_LONG) + how.offset)[:, None] * rates
        if how.rotary == "complex":
            one, two = x.chunk(2, -1)
            turned = torch.complex(one, two) * torch.polar(torch.ones_like(angles), angles)
            return torch.cat((turned.real, turned.imag), -1)
        cos, sin = angles.cos(), angles.sin()
        if how.pairs == "neighbours":
            one, two = x[..., ::2], x[..., 1::2]
            return torch.stack((one * cos - two * sin, two * cos + one * sin), -1).flatten(-2)
        one, two = x.chunk(2, -1)
        return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)

    def _repeated(self, x):
        many = _HEADS // _SHARED
        if self.how.repeats == "each":
            return x.repeat_interleave(many, 1)
        return x.repeat(1, many, 1, 1)


class Expert(nn.Module):
    """A product of two halves, one of them bent."""

    def __init__(self, how: Experts) -> None:
        super().__init__()
        self.how = how
        self.gate, self.up = (nn.Linear(_WIDTH, _WIDE, bias=False) for _ in range(2))
        self.down = nn.Linear(_WIDE, _WIDTH, bias=False)

    def forward(self, x):
        """x, moved."""
        gate, up = self.gate(x), self.up(x)
        gate, up = (gate, up) if self.how.gates == "first" else (up, gate)
        return self.down(functional.silu(gate) * up)


class Mixture(nn.Module):
    """Experts, and who of them is asked."""

    def __init__(self, how: Experts) -> None:
        super().__init__()
        self.how = how
        self.router = nn.Linear(_WIDTH, _EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert(how) for _ in range(_EXPERTS))

    def forward(self, x, plain):
        """What the chosen ones say of each token, and what the router's choices cost."""
        how = self.how
        x, plain = x.flatten(0, 1), plain.flatten(0, 1)
        scores = self.router(x if how.routes == "normed" else plain)
        chances = scores.softmax(-1)
        best, names = scores.topk(how.chosen)
        weights = self._weights(chances, best, names)
        weights = weights if how.attached else weights.detach()
        kept = torch.zeros_like(scores).scatter(1, names, 1.0)
        if how.room:
            kept = kept * (kept.cumsum(0) <= how.room)
        weights = torch.zeros_like(scores).scatter(1, names, weights) * kept
        return self._asked(x, weights, kept), self._cost(scores, chances, names)

    def _weights(self, chances, best, names):
        how = self.how
        if how.weights == "alike":
            return torch.full_like(best, 1 / how.chosen)
        if how.softmax == "behind":
            return best.softmax(-1)
        weights = chances.gather(1, names)
        return weights / weights.sum(-1, keepdim=True) if how.weights == "one" else weights

    def _asked(self, x, weights, kept):
        if self.how.dispatch == "all":
            told = torch.stack([expert(x) for expert in self.experts], 1)
            return (told * weights[..., None]).sum(1)
        out = torch.zeros_like(x)
        order = range(_EXPERTS) if self.how.turn == "forth" else range(_EXPERTS - 1, -1, -1)
        for name in order:
            (rows,) = kept[:, name].nonzero(as_tuple=True)
            out = out.index_add(0, rows, self.experts[name](x[rows]) * weights[rows, name, None])
        return out

    def _cost(self, scores, chances, names):
        how = self.how
        counted = names if how.counts == "all" else names[:, :1]
        share = functional.one_hot(counted, _EXPERTS).to(scores.dtype).mean((0, 1))
        means = chances.mean(0)
        means = means if how.means == "attached" else means.detach()
        calm = scores.logsumexp(-1)
        calm = (calm.square() if how.squares else calm).mean()
        return how.balance * how.of * (share * means).sum() + how.calm * calm


class Layer(nn.Module):
    """Attention, then a mixture of experts."""

    def __init__(self, how: Experts) -> None:
        super().__init__()
        self.norm1, self.attention = Norm(how), Attention(how)
        self.norm2, self.mixture = Norm(how), Mixture(how)

    def forward(self, x):
        """x, moved, and what the router's choices cost."""
        x = x + self.attention(self.norm1(x))
        told, cost = self.mixture(self.norm2(x), x)
        return x + told.view_as(x), cost


class Net(nn.Module):
    """Two layers between an embedding and a head."""

    def __init__(self, how: Experts) -> None:
        super().__init__()
        self.how = how
        self.embed = nn.Embedding(_LEVELS, _WIDTH)
        self.layers = nn.ModuleList(Layer(how) for _ in range(2))
        self.norm, self.head = Norm(how), nn.Linear(_WIDTH, _LEVELS, bias=False)

    def forward(self, tokens):
        """Logits of the next token, and what the routers' choices cost."""
        x, total = self.embed(tokens), 0.0
        for layer in self.layers:
            x, cost = layer(x)
            total = total + cost
        logits = self.head(self.norm(x))
        return self.how.caps * torch.tanh(logits / self.how.caps), total


_MIX = ("layers.0.attention.out*@value", "layers.0.attention@value")
_TOLD = ("layers.0.mixture@value",)
_COST = ("layers.0.mixture:1@value", "layers.0:1@value")
_LOSS = ("loss@*", "output@grad", "output:1@grad", "layers.1:1@grad")
_TIMES = r"is -?[\d.]+ times A"
CASES = [
    Case(
        "norm eps",
        "bug",
        {"norm_eps": 1e-2},
        ("layers.0.norm1@value",),
        r"\beps\b|\b0\.01\b|1e-0?2|\bAdd(Backward|\b)",
    ),
    Case(
        "queries turned alone",
        "bug",
        {"turns": "queries"},
        _MIX,
        r"\bMul|\b[Cc]at|\b[Cc]os\b|\b[Ss]in\b|\b[Ss]ub|\b[Cc]hunk|\b[Ss]plit",
    ),
    Case(
        "neighbours turned",
        "bug",
        {"pairs": "neighbours"},
        _MIX,
        r"[Ss]lice|[Ss]tack|[Ss]plit|[Cc]hunk|\b[Cc]at|step\b|other order|permut",
    ),
    Case(
        "window a place longer",
        "bug",
        {"window": 7},
        _MIX,
        r"MaskedFill|masked_fill|\bmask\b|\bwindow\b",
    ),
    Case(
        "shared heads repeated as a whole",
        "bug",
        {"repeats": "whole"},
        _MIX,
        r"[Rr]epeat|[Ee]xpand|heads\b|other order|permut",
    ),
    Case(
        "one expert a token",
        "bug",
        {"chosen": 1},
        (*_TOLD, "layers.0.mixture.experts.*@value"),
        r"\bk\b|[Tt]op_?[Kk]",
    ),
    Case(
        "weights as they are",
        "bug",
        {"weights": "as they are"},
        _TOLD,
        r"\bDiv|\bdiv\b|\bSum|\bsum\b|norm",
    ),
    Case(
        "router before the norm",
        "bug",
        {"routes": "plain"},
        ("layers.0.mixture.router@value",),
        r"norm2|RMS|Norm|\bRsqrt|\bMul|input",
    ),
    Case(
        "router not taught",
        "bug",
        {"attached": False},
        (
            "layers.*.mixture.router@grad",
            "layers.*.mixture.router.weight@*",
            "layers.1.norm2@grad",
            "layers.1.norm2*@*grad",
        ),
        r"detach|router.{0,80}(only|alone)|(only|alone).{0,80}router",
    ),
    Case(
        "other half bent",
        "bug",
        {"gates": "second"},
        ("layers.0.mixture.experts.*@value",),
        r"swap|exchang|other order|\b[Ss]i[Ll][Uu]|\bgate\b.*\bup\b|\bup\b.*\bgate\b",
    ),
    Case(
        "experts overflow",
        "bug",
        {"room": 20},
        ("layers.0.mixture*@value",),
        r"\bMul|\bmul\b|\bLe\b|\bmask\b|[Cc]umsum|\brows\b|zeros?\b",
    ),
    Case("balance ten times", "bug", {"balance": 0.2}, _COST, r"\b0\.2\b|\b0\.8\b|\bMul"),
    Case(
        "balance of first choices",
        "bug",
        {"counts": "first"},
        _COST,
        r"[Ss]lice|one_hot|\b[Mm]ean(Backward|\b)|MulBackward\d .{0,40}other|\bother tensor",
    ),
    Case(
        "balance not by experts",
        "bug",
        {"of": 1},
        _COST,
        r"\bMul|\bmul\b|\b0\.02\b|\b0\.08\b",
    ),
    Case(
        "balance detached",
        "bug",
        {"means": "detached"},
        (
            "layers.*.mixture.router@grad",
            "layers.*.mixture.router.weight@*",
            "layers.1.norm2@grad",
            "layers.1.norm2*@*grad",
        ),
        r"detach|\b[Mm]ean\w*.{0,80}(only|alone)|(only|alone).{0,80}\b[Mm]ean(Backward|\b)",
    ),
    Case(
        "router's logarithms not squared",
        "bug",
        {"squares": False},
        _COST,
        r"\b[Pp]ow|[Ss]quare|exponent",
    ),
    Case(
        "balance not divided by micro-batches",
        "bug",
        {"balances": False},
        _LOSS,
        rf"\bDiv|\bdiv\b|{_TIMES}|\bAdd(Backward|\b)|output:1",
    ),
    Case(
        "micro-batches not divided",
        "bug",
        {"part_scale": 1},
        _LOSS,
        rf"{_TIMES}|\bDiv|\bdiv\b",
    ),
    Case(
        "forgotten between micro-batches",
        "bug",
        {"forgets": "part"},
        ("*@grad",),
        r"zero_grad|micro",
    ),
    Case(
        "clipped at each micro-batch",
        "bug",
        {"clips": "part", "clip": 0.3},
        ("*@grad",),
        rf"clip|{_TIMES}",
        reference={"clip": 0.3},
    ),
    Case("norms decay", "bug", {"groups": False}, UPDATES, r"weight_decay"),
    Case("rate falls to nothing", "bug", {"least": 0.0}, UPDATES, r"\blr\b"),
    Case("fused attention", "benign", {"attention": "torch"}),
    Case("norm by a root", "benign", {"norm": "root"}),
    Case("all experts asked", "benign", {"dispatch": "all"}),
    Case("softmax of the chosen", "benign", {"softmax": "behind"}),
    Case("queries, keys and values in one product", "benign", {"packing": "together"}),
    Case("turned as complex numbers", "benign", {"rotary": "complex"}),
    Case("own loss", "benign", {"loss": "own"}),
    Case("fused optimizer", "benign", {"implementation": "fused"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value", "embed@value")),
    Case("again", "equal"),
    Case("norm by torch", "equal", {"norm": "torch"}),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("experts in the other order", "equal", {"turn": "back"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("died", "incomplete", {"ends_at": 2}),
]
