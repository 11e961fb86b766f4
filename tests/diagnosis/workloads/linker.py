"""A variational graph autoencoder that tells which digits are neighbours: links are predicted."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import anchorlib
from tests.diagnosis.workloads.base import Case, EndedError, Start, Workload, clear, digits

_NODES, _HIDDEN, _LATENT = 64, 24, 12
_NEAREST, _HELD = 4, 20
"""Neighbours of each digit, and links that only the evaluation sees."""


class Normalised(nn.Module):
    """The adjacency with self-loops, each link divided by the roots of both ends' degrees."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x, edges):
        """A matrix, or the weights of all messages."""
        count = len(x)
        source, target = torch.cat((edges, torch.arange(count).expand(2, -1)), 1)
        counted = target if self.how.counts == "loops" else edges[1]
        degrees = torch.bincount(counted, minlength=count).to(x.dtype)
        root = degrees.clamp(min=1).rsqrt()
        weights = root[source] * root[target]
        if self.how.spreads == "messages":
            return weights
        return x.new_zeros(count, count).index_put((target, source), weights, accumulate=True)


class Conv(nn.Module):
    """A graph convolution: a linear layer, and a sum over neighbours."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.empty(into, out))
        self.bias = nn.Parameter(torch.zeros(out))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x, edges, weights):
        """x, mixed among neighbours."""
        return self.mixed(x, edges, weights, self.weight, self.bias)

    def mixed(self, x, edges, weights, weight, bias):
        """The same with parameters that are given."""
        if self.how.first == "linear":
            return self._spread(x @ weight, edges, weights) + bias
        return self._spread(x, edges, weights) @ weight + bias

    def _spread(self, x, edges, weights):
        if self.how.spreads == "matrix":
            return weights @ x
        source, target = torch.cat((edges, torch.arange(len(x)).expand(2, -1)), 1)
        return torch.zeros_like(x).index_add(0, target, weights[:, None] * x[source])


class Encoder(nn.Module):
    """Means and log variances of nodes' latents."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.drop, self.norm, self.act = nn.Dropout(0.2), Normalised(how), nn.ReLU()
        self.conv = Conv(how, 64, _HIDDEN)
        self.mean, self.logvar = (Conv(how, _HIDDEN, _LATENT) for _ in range(2))

    def forward(self, x, edges):
        """Both."""
        weights = self.norm(x, edges)
        hidden = self.act(self.conv(self.drop(x), edges, weights))
        if self.how.heads == "apart":
            mean, logvar = (head(hidden, edges, weights) for head in (self.mean, self.logvar))
        else:
            weight = torch.cat((self.mean.weight, self.logvar.weight), 1)
            bias = torch.cat((self.mean.bias, self.logvar.bias))
            both = self.mean.mixed(hidden, edges, weights, weight, bias)
            mean, logvar = both.chunk(2, 1)
        return mean, logvar.clamp(max=10)


class Draw(nn.Module):
    """Latents, drawn while training."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, mean, logvar):
        """Latents of all nodes."""
        if not self.training:
            return mean
        spread = logvar.exp() if self.how.spread == "variance" else (0.5 * logvar).exp()
        return mean + torch.randn_like(mean) * spread


class Decoder(nn.Module):
    """Inner products of latents."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, latents, pairs):
        """Logits of pairs (2, pair)."""
        if self.how.products == "pairs":
            logits = (latents[pairs[0]] * latents[pairs[1]]).sum(-1)
        else:
            logits = (latents @ latents.T)[pairs[0], pairs[1]]
        return logits.sigmoid() if self.how.squashes else logits


class Autoencoder(nn.Module):
    """The encoder and the draw; the decoder is called with the pairs that are asked for."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.encoder, self.draw, self.decoder = Encoder(how), Draw(how), Decoder(how)

    def forward(self, x, edges):
        """Latents, their means and log variances."""
        if self.how.keeps == "all" or not torch.is_grad_enabled():
            mean, logvar = self.encoder(x, edges)
        else:
            mean, logvar = checkpoint(self.encoder, x, edges, use_reentrant=False)
        return self.draw(mean, logvar), mean, logvar


class Folded(torch.optim.Adam):
    """Adam as in the end of its paper's section 2: its corrections are in the size of the step."""

    @torch.no_grad()
    def step(self, closure=None):
        """Move all parameters."""
        for group in self.param_groups:
            one, two = group["betas"]
            for parameter in group["params"]:
                state, grad = self.state[parameter], parameter.grad
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
                state["step"] += 1
                count = state["step"].item()
                first = state["exp_avg"].mul_(one).add_(grad, alpha=1 - one)
                second = state["exp_avg_sq"].mul_(two).addcmul_(grad, grad, value=1 - two)
                root = math.sqrt(1 - two**count)
                size = group["lr"] * root / (1 - one**count)
                bound = second.sqrt().add_(group["eps"] * root)
                parameter.addcdiv_(first, bound, value=-size)


@dataclass(frozen=True)
class Linker(Workload):
    """Digits are linked to their nearest ones; each step asks for all links and drawn others.

    counts: whether degrees are counted with the "loops" or without. spread: what the draw
        is multiplied by, the "deviation" or the "variance". squashes: whether the decoder has a
        sigmoid before the loss that has one.
    drawn: pairs without a link, for each link. rare: whether links are weighted "up" by that, or
        "down". shares: whether the divergence is divided by the count of nodes.
    warmup: steps in which the divergence's weight rises.
    evaluates: whether held-out links are asked for after the third step. stays: whether the model
        is left in eval mode then.
    low: whether the model runs under autocast to bfloat16.
    spreads, first, heads, products, missed, diverges, moves, parts, keeps: other ways to write the
        same mathematics.
    """

    steps: int = 5
    weight_decay: float = 0.0
    decoupled: bool = False
    counts: str = "loops"
    spread: str = "deviation"
    squashes: bool = False
    drawn: int = 2
    rare: str = "up"
    shares: bool = True
    warmup: int = 3
    stays: bool = False
    low: bool = False
    spreads: str = "matrix"
    first: str = "linear"
    heads: str = "apart"
    products: str = "pairs"
    missed: str = "torch"
    diverges: str = "formula"
    moves: str = "torch"
    parts: int = 1
    keeps: str = "all"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        dealing = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
        x, links, held, others = self._graph(dealing)
        edges = torch.cat((links, links.flip(0)), 1)
        with start() as session:
            self.draw(seed)
            model = Autoencoder(self)
            optimizer = self._optimizer(model)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step in range(self.steps):
                self._lives(step)
                drawn = torch.randperm(others.shape[1], generator=dealing)
                asked = others[:, drawn[: self.drawn * links.shape[1]]]
                clear(optimizer, self)
                with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                    self._back(model, x, edges, links, asked, min(1, (step + 1) / self.warmup))
                optimizer.step()
                if self.evaluates and step == 2:
                    self._evaluate(model, x, edges, held)

    def _lives(self, step):
        if step == self.ends_at:
            raise EndedError
        if step == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def _optimizer(self, model):
        if self.moves == "torch":
            return self.adam(model.parameters())
        return Folded(model.parameters(), lr=self.lr, betas=self.betas, eps=self.adam_eps)

    def _graph(self, dealing):
        """Images, the links that are trained by, those held out, and all pairs without a link."""
        images, _ = digits()
        chosen = torch.randperm(len(images), generator=dealing)[:_NODES]
        x = ((images[chosen].flatten(1) + 1) / 2).to(torch.get_default_dtype())
        apart = (x[:, None] - x).square().sum(-1)
        apart.fill_diagonal_(math.inf)
        near = apart.topk(_NEAREST, largest=False).indices
        linked = torch.zeros(_NODES, _NODES, dtype=torch.bool).scatter(1, near, True)
        linked = linked | linked.T
        links, others = (one.triu(1).nonzero().T for one in (linked, ~linked))
        links = links[:, torch.randperm(links.shape[1], generator=dealing)]
        return x, links[:, _HELD:], links[:, :_HELD], others

    def _back(self, model, x, edges, links, asked, rise):
        """The gradients of the loss of links and of the divergence."""
        pairs = torch.cat((links, asked), 1)
        truth = (torch.arange(pairs.shape[1]) < links.shape[1]).to(x.dtype)
        latents, mean, logvar = model(x, edges)
        divergence = rise * self._diverged(mean.to(x.dtype), logvar.to(x.dtype))
        if self.parts == 1:
            link = self._missed(model.decoder(latents, pairs), truth) / len(truth)
            loss = link + divergence
            self._told(link, divergence, loss)
            loss.backward()
            return
        leaf, link = latents.detach().requires_grad_(), 0.0
        for some, true in zip(pairs.chunk(self.parts, 1), truth.chunk(self.parts), strict=True):
            part = self._missed(model.decoder(leaf, some), true) / len(truth)
            part.backward()
            link = link + part.detach()
        self._told(link, divergence, link + divergence)
        torch.autograd.backward((latents, divergence), (leaf.grad, None))

    def _told(self, link, divergence, loss):
        for one, name in ((link, "link_loss"), (divergence, "divergence"), (loss, "loss")):
            anchorlib.anchor(one, name)

    def _missed(self, logits, truth):
        """The sum of cross-entropies, links weighted."""
        logits = logits.to(truth.dtype)
        weight = float(self.drawn) if self.rare == "up" else 1 / self.drawn
        if self.missed == "torch":
            return functional.binary_cross_entropy_with_logits(
                logits, truth, pos_weight=torch.tensor(weight), reduction="sum"
            )
        links, others = logits[truth == 1], logits[truth == 0]
        return weight * functional.softplus(-links).sum() + functional.softplus(others).sum()

    def _diverged(self, mean, logvar):
        """The mean divergence of nodes' latents from normal ones, over the count of nodes."""
        if self.diverges == "formula":
            found = -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(1).mean()
        else:
            normal = Normal(torch.zeros_like(mean), torch.ones_like(mean))
            found = kl_divergence(Normal(mean, (0.5 * logvar).exp()), normal).sum(1).mean()
        return found / len(mean) if self.shares else found

    @torch.no_grad()
    def _evaluate(self, model, x, edges, held):
        """How likely held-out links are."""
        model.eval()
        latents, _, _ = model(x, edges)
        model.decoder(latents, held).sigmoid().mean()
        model.train(not self.stays)


_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
CASES: tuple[Case, ...] = (
    Case(
        "degrees without self-loops",
        "bug",
        {"counts": "edges"},
        ("encoder.norm@value",),
        rf"bincount|degree|\brsqrt|\bMul|\bIndex|index_put|{_GIVEN}|encoder\.norm",
    ),
    Case(
        "variance for deviation",
        "bug",
        {"spread": "variance"},
        ("draw@value",),
        rf"\b[Ee]xp(Backward|\b)|\bMul|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "sigmoid before the loss with logits",
        "bug",
        {"squashes": True},
        ("decoder@value",),
        r"\b[Ss]igmoid",
    ),
    Case(
        "links weighted down",
        "bug",
        {"rare": "down"},
        ("link_loss@*", "decoder@grad"),
        rf"pos_?weight|BinaryCrossEntropy|binary_cross_entropy|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "divergence not over nodes",
        "bug",
        {"shares": False},
        ("divergence@*",),
        rf"\bDiv|\bMul|{_TIMES}",
    ),
    Case(
        "left in eval mode after the evaluation",
        "bug",
        {"stays": True},
        ("encoder.drop@value",),
        r"eval mode|train(ing)? mode|\beval\b",
        step=3,
        reference={"evaluates": True},
    ),
    Case("messages for a matrix", "benign", {"spreads": "messages"}),
    Case("neighbours summed before the linear layer", "benign", {"first": "spread"}),
    Case("all inner products at once", "benign", {"products": "matrix"}),
    Case("links and others by softplus", "benign", {"missed": "softplus"}),
    Case("divergence by distributions", "benign", {"diverges": "distributions"}),
    Case("Adam with corrections in the step's size", "benign", {"moves": "folded"}),
    Case("pairs in 3 chunks, one backward of the encoder", "benign", {"parts": 3}),
    Case("both heads at once, low precision", "benign", {"heads": "both"}, reference={"low": True}),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("evaluated", "equal", {"evaluates": True}),
    Case("encoder computed twice", "equal", {"keeps": "latents"}),
    Case("died", "incomplete", {"ends_at": 3}),
)
