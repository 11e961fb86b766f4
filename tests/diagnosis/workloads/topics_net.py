"""The parts of an embedded topic model, and Adam as it is written by hand."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import anchorlib

WORDS, TOPICS = 48, 8
_HIDDEN, _WIDTH = 24, 12


class Adam(torch.optim.Optimizer):
    """Adam with decoupled decay, both corrections in its rate and its epsilon."""

    def __init__(self, groups, how) -> None:
        options = {"lr": how.lr, "betas": how.betas, "eps": how.adam_eps}
        super().__init__(groups, options | {"weight_decay": how.weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        """Update the parameters."""
        for group in self.param_groups:
            first, second = group["betas"]
            for one in group["params"]:
                if one.grad is None:
                    continue
                state = self.state[one]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(one), one * 0
                state["step"] += 1
                count, mean, square = state["step"].item(), state["exp_avg"], state["exp_avg_sq"]
                mean.mul_(first).add_(one.grad, alpha=1 - first)
                square.mul_(second).add_((1 - second) * one.grad**2)
                root = math.sqrt(1 - second**count)
                rate = group["lr"] * root / (1 - first**count)
                moved = rate * mean / (square.sqrt() + group["eps"] * root)
                one.sub_(moved + group["lr"] * group["weight_decay"] * one)


class Bag(nn.Linear):
    """The encoder's first layer, as a product or as a sum over the words that a document has."""

    how = "dense"

    def forward(self, shares):
        """The layer's output."""
        if self.how == "dense":
            return super().forward(shares)
        row, word = shares.nonzero(as_tuple=True)
        starts = torch.searchsorted(row, torch.arange(len(shares)))
        weights = shares[row, word]
        found = functional.embedding_bag(
            word, self.weight.t(), starts, mode="sum", per_sample_weights=weights
        )
        return found + self.bias


class Norm(nn.BatchNorm1d):
    """A batch norm whose scale is not learnt, torch's or by its formula."""

    how = "torch"

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.weight.requires_grad_(False)

    def forward(self, x):
        """x, normed."""
        if self.how == "torch" or not self.training:
            return super().forward(x)
        mean = x.mean(0)
        moved = x - mean
        variance = moved.square().mean(0)
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.mul_(1 - self.momentum).add_(self.momentum * mean)
            unbiased = variance * (len(x) / (len(x) - 1))
            self.running_var.mul_(1 - self.momentum).add_(self.momentum * unbiased)
        return moved / (variance + self.eps).sqrt() * self.weight + self.bias


class Encoder(nn.Module):
    """Two layers over a document's shares of words."""

    def __init__(self, how) -> None:
        super().__init__()
        self.bag, self.hidden = Bag(WORDS, _HIDDEN), nn.Linear(_HIDDEN, _HIDDEN)
        self.bag.how = how.bag
        self.act1, self.act2, self.drop = nn.Softplus(), nn.Softplus(), nn.Dropout(how.dropout)

    def forward(self, counts):
        """What is known of each document."""
        shares = counts / counts.sum(1, keepdim=True)
        return self.drop(self.act2(self.hidden(self.act1(self.bag(shares)))))


class Posterior(nn.Module):
    """A draw from the posterior; its mean while the model is evaluated."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, mean, logvar):
        """Logits of topics."""
        if not self.training:
            return mean
        scale = (0.5 * logvar).exp() if self.how.spread == "deviation" else logvar.exp()
        return mean + scale * torch.randn_like(mean)


class Decoder(nn.Module):
    """Topics are embedded among words: the nearer a word, the likelier."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.words = nn.Parameter(torch.randn(WORDS, _WIDTH) * 0.5)
        self.topics = nn.Linear(_WIDTH, TOPICS, bias=False)

    def forward(self, z):
        """The logarithm of each word's probability in each document."""
        near = self.topics(self.words if self.how.learns else self.words.detach())
        axis = 0 if self.how.over == "words" else 1
        if self.how.mixture == "log":
            pairs = z.log_softmax(1)[:, None] + near.log_softmax(axis)
            return pairs.logsumexp(2)
        beta = anchorlib.anchor(near.softmax(axis).t(), "beta")
        theta = anchorlib.anchor(z.softmax(1), "theta")
        return (theta @ beta).log()


class Model(nn.Module):
    """Encoder, posterior and decoder."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.encoder, self.posterior, self.decoder = Encoder(how), Posterior(how), Decoder(how)
        self.mean, self.logvar = (nn.Linear(_HIDDEN, TOPICS, bias=not how.norms) for _ in range(2))
        self.mean_norm, self.logvar_norm = (
            Norm(TOPICS) if how.norms else nn.Identity() for _ in range(2)
        )
        self.mean_norm.how = self.logvar_norm.how = how.norming

    def forward(self, counts):
        """Logarithms of words' probabilities, and the posterior's mean and log variance."""
        x = self.encoder(counts)
        if self.how.heads == "apart":
            mean, logvar = self.mean(x), self.logvar(x)
        else:
            weight = torch.cat((self.mean.weight, self.logvar.weight))
            mean, logvar = functional.linear(x, weight).chunk(2, 1)
        mean, logvar = self.mean_norm(mean), self.logvar_norm(logvar)
        z = self.posterior(mean, logvar)
        if self.how.keeps == "all" or not self.training:
            return self.decoder(z), mean, logvar
        return checkpoint(self.decoder, z, use_reentrant=False), mean, logvar
