"""A net that builds round trips through points, paid by how short they are against a copy's."""

from __future__ import annotations

import copy
import math
import os
import signal
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, EndedError, Start, Workload, clear

_POINTS, _WIDTH, _HEADS = 7, 16, 2
_SIZE = _WIDTH // _HEADS
_TOLD = 1e-3
"""By how much shorter a tour must be, to be better."""


@dataclass(frozen=True)
class Solver(Workload):
    """Points are two measures of real tumours; attention chooses which point comes next.

    wide: the factor of the second measure.
    root: of whose size the encoder's scores are divided by, the "head"'s or the "width"'s. over:
        what its softmax is over, "keys" or "queries". norm_eps: of batch norms.
    glimpses: whether the decoder's first attention leaves out points that were visited. bound: the
        bound of logits. squeezed: whether they are divided "before" or after tanh. context: what
        the next point is asked for by, "first last" or "last first". returns: whether tours end
        where they began.
    signs: of advantages. correction: of their spread. reduced: chances of a tour are a "sum" or a
        "mean". entropy: the weight of the bonus. spreads: whether entropies are a "mean" or a "sum"
        over samples.
    rests: whether the frozen copy is in eval mode. wakes: whether the net is in training mode again
        after the copy was compared. clears: whether gradients are forgotten.
    clip, clips: of gradients, by their "torch" norm or their "own" norm.
    attention, packing, norming, glimpse, masked, distances, chances, entropies, asked, average,
        scale, idle, lies: other ways to write the same mathematics.
    """

    lr: float = 5e-3
    weight_decay: float = 1e-3
    wide: float = 1.0
    root: str = "head"
    over: str = "keys"
    norm_eps: float = 1e-5
    glimpses: bool = True
    bound: float = 5.0
    squeezed: str = "before"
    context: str = "first last"
    returns: bool = True
    signs: float = 1.0
    correction: int = 1
    reduced: str = "sum"
    entropy: float = 0.05
    spreads: str = "mean"
    rests: bool = True
    wakes: bool = True
    clears: bool = True
    clip: float = 1.0
    clips: str = "torch"
    attention: str = "own"
    packing: str = "apart"
    norming: str = "torch"
    glimpse: str = "own"
    distances: str = "norm"
    chances: str = "gather"
    entropies: str = "own"
    asked: str = "cat"
    average: str = "mean"
    scale: float = 1.0
    idle: bool = False
    lies: str = "plain"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            frozen = copy.deepcopy(model).requires_grad_(False).train(not self.rests)
            optimizer = self.adam(model.parameters())
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(frozen, tensors="*", prefix="frozen")
            torch.manual_seed(seed)
            held = self._dealt(torch.Generator().manual_seed(5 + seed))
            for step, points in enumerate(self._batches(seed)):
                noise = -torch.empty(self.batch, _POINTS, _POINTS).exponential_().log()
                noise = noise.flip(0) if self.turned else noise
                if self.clears:
                    clear(optimizer, self)
                self._learn(model, frozen, points, noise)
                self._bound(model)
                optimizer.step()
                if step % 2:
                    self._replace(model, frozen, held)

    def _dealt(self, dealing):
        """Sets of points (sample, point, 2)."""
        known = _measures() * torch.tensor([1.0, self.wide])
        chosen = torch.rand(self.batch, len(known), generator=dealing).argsort(1)[:, :_POINTS]
        return known[chosen]

    def _batches(self, seed):
        """Sets of points, step by step."""
        dealing = torch.Generator().manual_seed(31 + 1000 * seed + self.order)
        for step in range(self.steps):
            points = self._dealt(dealing)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield points.flip(0) if self.turned else points

    def _learn(self, model, frozen, points, noise):
        """The gradients by how much shorter the tours are than those of the frozen copy."""
        tours, chances, entropy = model(points, noise)
        with torch.no_grad():
            lengths = anchorlib.anchor(self._lengths(points, tours), "lengths")
            usual = self._lengths(points, frozen(points, None)[0])
            usual = anchorlib.anchor(usual, "baseline")
            gains = self.signs * (lengths - usual)
            gains = gains / (gains.std(correction=self.correction) + 1e-6)
            anchorlib.anchor(gains, "advantages")
        chances = chances.sum(1) if self.reduced == "sum" else chances.mean(1)
        if self.average == "mean":
            paid = (gains * anchorlib.anchor(chances, "chances")).mean()
        else:
            paid = gains @ anchorlib.anchor(chances, "chances") / len(gains)
        entropy = entropy.mean(1).mean() if self.spreads == "mean" else entropy.mean(1).sum()
        losses = {"tour_loss": paid, "entropy_loss": -self.entropy * entropy}
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        (loss * self.scale).backward()

    def _lengths(self, points, tours):
        """How long tours are, until they are where they began."""
        walked = points.gather(1, tours[..., None].expand(-1, -1, 2))
        if not self.returns:
            return walked.diff(dim=1).norm(dim=2).sum(1)
        steps = walked.roll(-1, 1) - walked
        if self.distances == "norm":
            return steps.norm(dim=2).sum(1)
        if self.distances == "hypot":
            return torch.hypot(steps[..., 0], steps[..., 1]).sum(1)
        there = (points[:, :, None] - points[:, None]).square().sum(3).sqrt()
        rows = torch.arange(len(points))[:, None]
        return there[rows, tours, tours.roll(-1, 1)].sum(1)

    @torch.no_grad()
    def _replace(self, model, frozen, held):
        """The frozen copy becomes the net, where that is better at sets that are held back."""
        model.eval()
        new, old = (self._lengths(held, one(held, None)[0]).mean() for one in (model, frozen))
        anchorlib.anchor(new, "held_length")
        model.train(self.wakes)
        if new < old - _TOLD:
            frozen.load_state_dict(model.state_dict())

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        grads = [one.grad for one in model.parameters()]
        if self.scale != 1:
            for grad in grads:
                grad.div_(self.scale)
        if self.clips == "own":
            length = torch.stack([grad.square().sum() for grad in grads]).sum().sqrt()
            for grad in grads:
                grad.mul_((self.clip / (length + 1e-6)).clamp(max=1))
        elif self.clip:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)


def _measures():
    """How large and how rough 569 real tumours are, both from 0 to 1."""
    from sklearn.datasets import load_breast_cancer  # which imports scipy: a second

    known = torch.tensor(load_breast_cancer().data[:, :2], dtype=torch.get_default_dtype())
    low, high = known.aminmax(dim=0)
    return (known - low) / (high - low)


class Norm(nn.BatchNorm1d):
    """A batch norm over all points of all samples, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(_WIDTH, how.norm_eps)
        self.how = how

    def forward(self, x):
        """x (sample, point, width), normed."""
        flat = x.flatten(0, 1)
        if self.how.norming == "torch" or not self.training:
            return super().forward(flat).view(x.shape)
        spread, mean = torch.var_mean(flat, 0, correction=0)
        count = len(flat)
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(spread * (count / (count - 1)), self.momentum)
        return (x - mean) * ((spread + self.eps).rsqrt() * self.weight) + self.bias


class Attention(nn.Module):
    """Attention of all points to all points."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.q, self.k, self.v, self.out = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        """x, mixed."""
        how = self.how
        q, k, v = (_headed(part) for part in self._parts(x))
        if how.attention == "torch":
            mixed = functional.scaled_dot_product_attention(q, k, v)
        else:
            scores = q @ k.mT / math.sqrt(_SIZE if how.root == "head" else _WIDTH)
            mixed = scores.softmax(-1 if how.over == "keys" else -2) @ v
        return self.out(mixed.transpose(1, 2).reshape(x.shape))

    def _parts(self, x):
        if self.how.packing == "apart":
            return self.q(x), self.k(x), self.v(x)
        weight = torch.cat((self.q.weight, self.k.weight, self.v.weight))
        return functional.linear(x, weight).chunk(3, -1)


def _headed(x):
    """x (sample, point, width) as (sample, head, point, size)."""
    return x.unflatten(-1, (_HEADS, -1)).transpose(1, 2)


class Layer(nn.Module):
    """Attention and two linear layers, each added to what it was given and normed."""

    def __init__(self, how) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(how), Norm(how), Norm(how)
        self.wide = nn.Linear(_WIDTH, 2 * _WIDTH)
        self.narrow = nn.Linear(2 * _WIDTH, _WIDTH, bias=False)

    def forward(self, x):
        """x, changed."""
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.narrow(self.wide(x).relu()))


class Decoder(nn.Module):
    """Points to the next point of a tour: a glimpse at all that is left, then a choice."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.whole = nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.ends = nn.Linear(2 * _WIDTH, _WIDTH, bias=False)
        self.begin = nn.Parameter(torch.randn(2 * _WIDTH) * 0.3)
        self.keys, self.values, self.points = (
            nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(3)
        )
        self.out = nn.Linear(_WIDTH, _WIDTH, bias=False)

    def forward(self, x, first, last, visited):
        """Logarithms of the chances of points, of those that were not visited."""
        how = self.how
        asked = self.whole(x.mean(1)) + self._ends(x, first, last)
        hidden = visited if how.glimpses else torch.zeros_like(visited)
        glimpse = self.out(self._glimpse(asked, self.keys(x), self.values(x), hidden))
        scores = (self.points(x) @ glimpse[:, :, None])[..., 0]
        if how.squeezed == "before":
            logits = how.bound * (scores / math.sqrt(_WIDTH)).tanh()
        else:
            logits = how.bound * scores.tanh() / math.sqrt(_WIDTH)
        anchorlib.anchor(logits, "logits")
        return logits.masked_fill(visited, -math.inf).log_softmax(1)

    def _ends(self, x, first, last):
        """What is asked for by the ends of the tour so far."""
        if first is None:
            ends = self.begin.expand(len(x), -1)
            return self.ends(ends.contiguous() if self.how.lies == "contiguous" else ends)
        rows = torch.arange(len(x))
        one, other = x[rows, first], x[rows, last]
        if self.how.asked == "apart":
            front, back = self.ends.weight.chunk(2, 1)
            return one @ front.T + other @ back.T
        pair = (one, other) if self.how.context == "first last" else (other, one)
        return self.ends(torch.cat(pair, 1))

    def _glimpse(self, asked, keys, values, hidden):
        """What attention finds at the points that are not hidden."""
        q, k, v = (_headed(part) for part in (asked[:, None], keys, values))
        if self.how.glimpse == "torch":
            seen = ~hidden[:, None, None]
            return functional.scaled_dot_product_attention(q, k, v, seen).flatten(1)
        scores = q @ k.mT / math.sqrt(_SIZE)
        shares = scores.masked_fill(hidden[:, None, None], -math.inf).softmax(-1)
        return (shares @ v).flatten(1)


class Net(nn.Module):
    """Points are encoded once; the decoder chooses them one by one."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.enter = nn.Linear(2, _WIDTH)
        self.layers = nn.Sequential(Layer(how), Layer(how))
        self.decoder = Decoder(how)

    def forward(self, points, noise):
        """Tours, chances of their steps, and entropies; without noise the likeliest tours."""
        x = self.enter(points)
        x = self.layers(functional.dropout(x, 0.0, self.training) if self.how.idle else x)
        visited = torch.zeros(points.shape[:2], dtype=torch.bool)
        tour, chances, entropies = [], [], []
        for at in range(_POINTS):
            ends = (tour[0], tour[-1]) if tour else (None, None)
            told = self.decoder(x, *ends, visited)
            chosen = (told if noise is None else told + noise[:, at]).argmax(1)
            chances.append(self._chance(told, chosen))
            entropies.append(self._entropy(told, visited))
            tour.append(chosen)
            visited = visited.scatter(1, chosen[:, None], True)
        anchorlib.anchor(torch.stack(tour, 1), "tours")
        return torch.stack(tour, 1), torch.stack(chances, 1), torch.stack(entropies, 1)

    def _chance(self, told, chosen):
        if self.how.chances == "gather":
            return told.gather(1, chosen[:, None])[:, 0]
        return -functional.cross_entropy(told, chosen, reduction="none")

    def _entropy(self, told, visited):
        """The entropy of the chances of points that were not visited."""
        finite = told.masked_fill(visited, 0.0)
        if self.how.entropies == "own":
            return -(told.exp() * finite).sum(1)
        return -torch.einsum("np,np->n", told.softmax(1), finite)


_MIXED = ("layers.0.attention.out@value", "layers.0.attention@value")
_LOSS = ("tour_loss@*", "loss@*")
_ENTROPY = ("entropy_loss@*", "loss@*")
_LOGITS = ("logits@value", "decoder@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES = [
    Case("root of the whole width", "bug", {"root": "width"}, _MIXED, rf"\bDiv|{_TIMES}|{_GIVEN}"),
    Case("softmax over queries", "bug", {"over": "queries"}, _MIXED, r"\bdim\b"),
    Case("eps of norms", "bug", {"norm_eps": 1e-1}, ("layers.0.norm1@value",), r"\beps\b"),
    Case(
        "visited points glimpsed",
        "bug",
        {"glimpses": False},
        ("decoder.out@value",),
        r"[Mm]ask|fill|\binf\b",
    ),
    Case("bound of 10", "bug", {"bound": 10.0}, _LOGITS, rf"\b[Mm]ul|{_TIMES}"),
    Case(
        "divided behind tanh",
        "bug",
        {"squeezed": "after"},
        _LOGITS,
        r"\b[Tt]anh|\b[Dd]iv|computes it from",
    ),
    Case(
        "ends of the tour exchanged",
        "bug",
        {"context": "last first"},
        ("decoder.ends@value",),
        rf"\b[Cc]at(Backward|\b)|{_ORDER}",
    ),
    Case(
        "tours without the way home",
        "bug",
        {"returns": False},
        ("lengths@value", "baseline@value"),
        r"\b[Rr]oll|\b[Dd]iff|\b[Ss]ub|\b[Nn]orm|\b[Ss]um",
    ),
    Case("advantages of the other sign", "bug", {"signs": -1.0}, ("advantages@value",), _TIMES),
    Case(
        "spread without correction",
        "bug",
        {"correction": 0},
        ("advantages@value",),
        rf"correction|\bstd|{_TIMES}",
    ),
    Case(
        "chances averaged",
        "bug",
        {"reduced": "mean"},
        ("chances@value", *_LOSS),
        rf"\bMean|\bSum(Backward|\b)|{_TIMES}",
    ),
    Case("bonus as a penalty", "bug", {"entropy": -0.05}, _ENTROPY, rf"\bMul|other sign|{_TIMES}"),
    Case(
        "frozen copy in training mode",
        "bug",
        {"rests": False},
        ("frozen.layers.0.norm1@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case(
        "gradients not forgotten",
        "bug",
        {"clears": False},
        ("*@grad",),
        r"zero_grad|accumulat|forg[eo]t|step before|earlier steps?|previous|added to",
        step=1,
    ),
    Case("eps of Adam", "bug", {"adam_eps": 1e-3}, UPDATES, r"\beps\b"),
    Case("attention by torch", "benign", {"attention": "torch"}),
    Case("one projection for three", "benign", {"packing": "joined"}),
    Case("own batch norms", "benign", {"norming": "own"}),
    Case("glimpse by torch", "benign", {"glimpse": "torch"}),
    Case("ways by a table of distances", "benign", {"distances": "table"}),
    Case("chances by cross entropy", "benign", {"chances": "torch"}),
    Case("entropy by einsum", "benign", {"entropies": "einsum"}),
    Case("ends of the tour apart", "benign", {"asked": "apart"}),
    Case("mean as a product", "benign", {"average": "product"}),
    Case("norm of gradients by tensor", "benign", {"clips": "own"}),
    Case("samples turned", "benign", {"turned": True}),
    Case("fused Adam", "benign", {"implementation": "fused"}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("second measure too wide", "data", {"wide": 2.0}, ("input*@value",)),
    Case("contiguous", "equal", {"lies": "contiguous"}),
    Case("dropout of nothing", "equal", {"idle": True}),
    Case("foreach Adam", "equal", {"implementation": "foreach"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
