"""Federated averaging: four clients with skewed digits, and a server that follows their mean."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    digits,
)

_HELD = (((0, 1, 2, 3), 400), ((2, 3, 4, 5, 6), 250), ((5, 6, 7), 150), ((0, 7, 8, 9), 100))
"""The digits that each client holds, and at most how many images of them."""
_CHANNELS = 6
_SHOWN = 24
"""The last images, that the server is evaluated by."""


@dataclass(frozen=True)
class Federator(Workload):
    """A round: clients take the server's parameters, learn, and the server follows their mean.

    bent: whether the net ends in a softmax. bn_eps, bn_momentum: of the batch norms.
    smoothing: of the clients' labels. over: their losses are a "mean" or a "sum".
    near: the weight of the proximal term. halves: whether it is halved. centre: what it pulls to,
        the "server"'s parameters or the client's "own".
    local: steps of a client a round. falls: the factor of its rate from round to round.
    momentum: of the clients. forgets: whether a client's momentum begins anew each round.
    clears: whether gradients are forgotten before each "step", or once a "round".
    refreshes: how many clients take the server's parameters.
    weighs: whether the clients' shares are as their samples are. stats: whether running statistics
        are "averaged" or "kept" by the clients.
    leads, follows: the server's rate and momentum. rests: whether it is evaluated in eval mode.
    low: whether the clients' nets run under autocast to bfloat16.
    convolution, norming, linear, classes, pull, mean, clients, backward, scale, takes, copies:
        other ways to write the same mathematics.
    """

    lr: float = 0.05
    weight_decay: float = 1e-3
    bent: bool = False
    bn_eps: float = 1e-5
    bn_momentum: float = 0.1
    smoothing: float = 0.0
    over: str = "mean"
    near: float = 0.5
    halves: bool = True
    centre: str = "server"
    local: int = 3
    falls: float = 0.9
    momentum: float = 0.5
    forgets: bool = True
    clears: str = "step"
    refreshes: int = 4
    weighs: bool = True
    stats: str = "averaged"
    leads: float = 0.8
    follows: float = 0.6
    rests: bool = True
    low: bool = False
    convolution: str = "torch"
    norming: str = "torch"
    linear: str = "torch"
    classes: str = "torch"
    pull: str = "loss"
    mean: str = "moves"
    clients: str = "first to last"
    backward: str = "once"
    scale: float = 1.0
    takes: str = "in place"
    copies: str = "clones"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Federation(self)
            locals_ = [
                self.sgd(client.parameters(), momentum=self.momentum) for client in model.clients
            ]
            server = self.sgd(
                model.server.parameters(), lr=self.leads, momentum=self.follows, weight_decay=0.0
            )
            session.watch(model, tensors="*", optimizer=[*locals_, server])
            torch.manual_seed(seed)
            pools = _pools()
            counts = torch.tensor([len(labels) for _, labels in pools], dtype=pools[0][0].dtype)
            shares = counts / counts.sum() if self.weighs else torch.full_like(counts, 0.25)
            for turn, dealt in enumerate(self._rounds(pools, seed)):
                anchorlib.anchor(shares, "shares")
                order = range(len(dealt))
                for at in order if self.clients == "first to last" else reversed(order):
                    if at < self.refreshes:
                        self._take(model.clients[at], model.server)
                    for group in locals_[at].param_groups:
                        group["lr"] = self.lr * self.falls**turn
                    self._learn(at, model, locals_[at], dealt[at])
                self._follow(model, shares)
                server.step()
                if turn % 2 == 1:
                    self._evaluate(model.server)

    def _rounds(self, pools, seed):
        """Each client's batches, round by round."""
        dealing = torch.Generator().manual_seed(61 + 1000 * seed + self.order)
        for turn in range(self.steps):
            dealt = []
            for images, labels in pools:
                chosen = torch.randint(0, len(labels), (self.local, 12), generator=dealing)
                chosen = chosen.flip(1) if self.turned else chosen
                dealt.append([(images[one], labels[one]) for one in chosen])
            if turn == self.ends_at:
                raise EndedError
            if turn == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield dealt

    @torch.no_grad()
    def _take(self, client, server):
        """Let a client begin where the server is."""
        if self.takes == "state":
            client.load_state_dict(server.state_dict())
            return
        for one, other in zip(client.parameters(), server.parameters(), strict=True):
            one.copy_(other)
        if self.stats == "averaged":
            for one, other in zip(client.buffers(), server.buffers(), strict=True):
                one.copy_(other)

    def _learn(self, at, model, optimizer, batches):
        """The steps of one client."""
        client = model.clients[at]
        if self.forgets:
            optimizer.state.clear()
        client.train()
        pulling = model.server if self.centre == "server" else client
        centre = [
            one.detach() if self.copies == "views" or self.centre == "own" else one.detach().clone()
            for one in pulling.parameters()
        ]
        for number, (images, labels) in enumerate(batches):
            if self.clears == "step" or number == 0:
                clear(optimizer, self)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                logits = client(images[:, None])
            named = self._named(logits.to(images.dtype), labels)
            pulled = self._pulled(list(client.parameters()), centre)
            loss = named + pulled
            told = {"class": named, "proximal": pulled, "whole": loss}
            for name, one in told.items():
                anchorlib.anchor(one, f"{name}_loss{at}")
            self._back(client, centre, named, pulled)
            optimizer.step()

    def _back(self, client, centre, named, pulled):
        """A client's gradients."""
        if self.pull == "gradient":
            (named * self.scale).backward()
        elif self.backward == "once":
            ((named + pulled) * self.scale).backward()
        else:
            (pulled * self.scale).backward()
            (named * self.scale).backward()
        with torch.no_grad():
            for one, other in zip(client.parameters(), centre, strict=True):
                if self.scale != 1:
                    one.grad.div_(self.scale)
                if self.pull == "gradient":
                    one.grad.add_(self.near * one).sub_(self.near * other)

    def _named(self, logits, labels):
        """The loss of the classes."""
        if self.classes == "own":
            return (logits.logsumexp(1) - logits.gather(1, labels[:, None])[:, 0]).mean()
        return functional.cross_entropy(
            logits, labels, reduction=self.over, label_smoothing=self.smoothing
        )

    def _pulled(self, parameters, centre):
        """The proximal term: how far a client is from the server."""
        weight = self.near / 2 if self.halves else self.near
        if self.pull == "vector":
            one, other = (torch.cat([w.flatten() for w in ws]) for ws in (parameters, centre))
            return weight * ((one - other) @ (one - other))
        pairs = zip(parameters, centre, strict=True)
        if self.pull == "each":
            return sum(weight * functional.mse_loss(a, b, reduction="sum") for a, b in pairs)
        return weight * sum((a - b).square().sum() for a, b in pairs)

    @torch.no_grad()
    def _follow(self, model, shares):
        """The server's gradients, of how its clients moved; and its running statistics."""
        together = zip(*(client.parameters() for client in model.clients), strict=True)
        for mine, theirs in zip(model.server.parameters(), together, strict=True):
            mine.grad = self._moved(mine, theirs, shares)
        if self.stats == "averaged":
            together = zip(*(client.buffers() for client in model.clients), strict=True)
            for mine, theirs in zip(model.server.buffers(), together, strict=True):
                if mine.is_floating_point():
                    mine.copy_(torch.tensordot(shares, torch.stack(theirs), 1))
                else:
                    mine.copy_(theirs[0])

    def _moved(self, mine, theirs, shares):
        """The clients' mean move, the other way."""
        if self.mean == "moves":
            return sum(share * (mine - one) for share, one in zip(shares, theirs, strict=True))
        if self.mean == "places":
            return mine - sum(share * one for share, one in zip(shares, theirs, strict=True))
        mean, whole = torch.zeros_like(mine), 0.0
        for share, one in zip(shares, theirs, strict=True):
            whole = whole + share
            mean = mean + (one - mean) * (share / whole)
        return mine - mean

    @torch.no_grad()
    def _evaluate(self, server):
        """The server's loss of images that no client holds."""
        images, labels = digits()
        server.train(not self.rests)
        logits = server(images[-_SHOWN:, None])
        anchorlib.anchor(functional.cross_entropy(logits, labels[-_SHOWN:]), "eval_loss")


class Conv(nn.Conv2d):
    """A 3 × 3 convolution that halves the image, torch's or as a product with patches."""

    def __init__(self, how) -> None:
        super().__init__(1, _CHANNELS, 3, stride=2, padding=1, bias=False)
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.how.convolution == "torch":
            return super().forward(x)
        patches = functional.unfold(x, 3, padding=1, stride=2)
        return (self.weight.flatten(1) @ patches).unflatten(2, (x.shape[2] // 2, -1))


class Norm(nn.BatchNorm2d):
    """A batch norm, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(_CHANNELS, eps=how.bn_eps, momentum=how.bn_momentum)
        self.how = how

    def forward(self, x):
        """x, normed."""
        if self.how.norming == "torch" or not self.training:
            return super().forward(x)
        axes, sizes = (0, 2, 3), (1, -1, 1, 1)
        wide = x.to(self.weight.dtype)
        mean = wide.mean(axes)
        spread = wide.square().mean(axes) - mean.square()
        count = x.numel() // x.shape[1]
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(spread * (count / (count - 1)), self.momentum)
        factor = self.weight * (spread + self.eps).rsqrt()
        return wide * factor.view(sizes) + (self.bias - mean * factor).view(sizes)


class Linear(nn.Linear):
    """A linear layer, torch's or by einsum."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out)
        self.how = how

    def forward(self, x):
        """The product."""
        if self.how.linear == "torch":
            return super().forward(x)
        return torch.einsum("ni,oi->no", x, self.weight) + self.bias


class Net(nn.Module):
    """A convolution with a norm, and two layers."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.conv, self.norm, self.act = Conv(how), Norm(how), nn.Tanh()
        self.hidden, self.bend = Linear(how, 16 * _CHANNELS, 16), nn.Tanh()
        self.head = Linear(how, 16, 10)

    def forward(self, x):
        """Logits of images (sample, 1, 8, 8)."""
        x = self.act(self.norm(self.conv(x))).flatten(1)
        logits = self.head(self.bend(self.hidden(x)))
        return logits.softmax(1) if self.how.bent else logits


class Federation(nn.Module):
    """The server's net, and each client's copy of it."""

    def __init__(self, how) -> None:
        super().__init__()
        self.server = Net(how)
        self.clients = nn.ModuleList(Net(how) for _ in _HELD)
        for client in self.clients:
            client.load_state_dict(self.server.state_dict())


def _pools():
    """The images and labels of each client."""
    images, labels = digits()
    images, labels = images[:-_SHOWN], labels[:-_SHOWN]
    found = []
    for held, most in _HELD:
        own = torch.isin(labels, torch.tensor(held)).nonzero()[:most, 0]
        found.append((images[own], labels[own]))
    return found


_CLASS = ("class_loss*@*", "whole_loss*@*", "clients.*output@grad", "clients.*head@grad")
_PULLED = ("proximal_loss*@*", "whole_loss*@*")
_MEAN = ("shares@value", "server.*@grad")
_LOCAL = ("clients.*@updated", "clients.*@delta", "clients.*@opt.*")
_SERVER = ("server.*@updated", "server.*@delta", "server.*@opt.*")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
CASES = [
    Case(
        "softmax before the loss",
        "bug",
        {"bent": True},
        ("clients.?@value", "class_loss*@*"),
        r"softmax",
    ),
    Case("eps of batch norms", "bug", {"bn_eps": 1e-2}, ("clients.?.norm@value",), r"\beps\b"),
    Case(
        "momentum of batch norms",
        "bug",
        {"bn_momentum": 0.01},
        ("*.norm.running_*@*",),
        r"\bmomentum\b",
    ),
    Case("labels smoothed", "bug", {"smoothing": 0.1}, _CLASS, r"smooth"),
    Case("losses summed", "bug", {"over": "sum"}, _CLASS, rf"reduction|\bsum\b|{_TIMES}"),
    Case("proximal term not halved", "bug", {"halves": False}, _PULLED, rf"\bMul|{_TIMES}"),
    Case(
        "pulled to itself",
        "bug",
        {"centre": "own"},
        _PULLED,
        rf"\bSub|\bzeros?\b|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "clients' momentum carried over",
        "bug",
        {"forgets": False},
        _LOCAL,
        r"momentum|\bstate\b",
        step=1,
    ),
    Case(
        "gradients forgotten once a round",
        "bug",
        {"clears": "round"},
        ("clients.*@grad", *_LOCAL),
        r"zero_grad|accumulat|forgot|not (cleared|zeroed)|earlier gradients?",
    ),
    Case("clients' rate does not fall", "bug", {"falls": 1.0}, _LOCAL, r"\blr\b", step=1),
    Case(
        "last client not refreshed",
        "bug",
        {"refreshes": 3},
        ("clients.3.*@value", "proximal_loss3@*"),
        r"parameters?|weights?|\bstate\b",
        step=1,
    ),
    Case(
        "clients have the same share",
        "bug",
        {"weighs": False},
        _MEAN,
        rf"\bDiv|shares|a factor of its own|{_TIMES}",
    ),
    Case(
        "statistics kept by the clients",
        "bug",
        {"stats": "kept"},
        ("server.norm.running_*@*", "server.norm.num*@*", "server.norm@value"),
        r"running|buffer|statistics",
    ),
    Case("server without momentum", "bug", {"follows": 0.0}, _SERVER, r"momentum"),
    Case(
        "server evaluated in training mode",
        "bug",
        {"rests": False},
        ("server.norm@value", "server.norm.running_*@*", "server.norm.num*@*"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case("convolutions of patches", "benign", {"convolution": "patches"}),
    Case("own batch norm", "benign", {"norming": "own"}),
    Case("linear by einsum, loss by hand", "benign", {"linear": "einsum", "classes": "own"}),
    Case("loss by hand", "benign", {"classes": "own"}),
    Case("proximal term as a gradient", "benign", {"pull": "gradient"}),
    Case("proximal term of one vector", "benign", {"pull": "vector"}),
    Case("mean of places", "benign", {"mean": "places"}),
    Case("running mean", "benign", {"mean": "running"}),
    Case("losses scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case("samples turned", "benign", {"turned": True}),
    Case(
        "own batch norm, low precision",
        "benign",
        {"norming": "own"},
        reference={"low": True},
    ),
    Case(
        "convolutions of patches, low precision",
        "benign",
        {"convolution": "patches"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("*input*@value",)),
    Case("clients last to first", "equal", {"clients": "last to first"}),
    Case("states loaded", "equal", {"takes": "state"}),
    Case("server's parameters as views", "equal", {"copies": "views"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
