"""Prototypical networks: digits of few examples are told by the nearest mean of embeddings."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    digits,
)

_SEEN, _NOVEL = range(7), range(7, 10)
"""The classes that are trained, and those of validation."""
_MOST = 4
"""The most shots of a class."""
_WIDTHS = (1, 8, 12, 16)


@dataclass(frozen=True)
class FewShot(Workload):
    """Each step averages the losses of some episodes: a few classes, each of a few shots.

    ways, queries, episodes: of an episode its classes, and of a class its queries; of a step its
        episodes. targets: classes of the queries, each "interleaved" or all "repeated".
    together: whether supports and queries share a pass, and so the statistics of its batch norms.
    counted: prototypes are sums divided by the shots of their "class", or by the "mean" of shots.
    attached: whether gradients reach the supports. squares: whether distances are squared.
    over: what the softmax is over, "classes" or "queries". temperature: where it begins. learnt:
        whether the optimizer has it.
    falls: the factor of the learning rate every second step. schedules: the schedule advances each
        "step" or "episode".
    quiet: whether validation is in eval mode. wakes: whether training is in training mode again.
    low: whether the embedding runs under autocast to bfloat16.
    means, distances, tempered, first, backward, loss, layout, validates: other ways to write the
        same mathematics.
    """

    lr: float = 5e-2
    weight_decay: float = 5e-4
    ways: int = 5
    queries: int = 3
    episodes: int = 3
    targets: str = "interleaved"
    together: bool = True
    counted: str = "class"
    attached: bool = True
    squares: bool = True
    over: str = "classes"
    temperature: float = 4.0
    learnt: bool = True
    falls: float = 0.5
    schedules: str = "step"
    quiet: bool = True
    wakes: bool = True
    low: bool = False
    means: str = "loop"
    distances: str = "differences"
    tempered: str = "scores"
    first: str = "supports"
    backward: str = "each"
    loss: str = "nll"
    layout: torch.memory_format = torch.contiguous_format
    validates: str = "no_grad"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = ProtoNet(self).to(memory_format=self.layout)
            optimizer = self.sgd(model.parameters() if self.learnt else model.embed.parameters())
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, self.falls)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            dealing = torch.Generator().manual_seed(31)
            held = [self._episode(_NOVEL, len(_NOVEL), dealing) for _ in range(2)]
            for step, episodes in enumerate(self._tasks(seed)):
                clear(optimizer, self)
                losses = []
                for episode in episodes:
                    losses.append(self._learn(model, *episode))
                    if self.schedules == "episode":
                        schedule.step()
                if self.backward == "once":
                    sum(losses).backward()
                optimizer.step()
                if self.schedules == "step":
                    schedule.step()
                if step % 2:
                    self._validate(model, held)

    def _tasks(self, seed):
        """The episodes of each step."""
        dealing = torch.Generator().manual_seed(41 + 1000 * seed + self.order)
        for step in range(self.steps):
            found = [self._episode(_SEEN, self.ways, dealing) for _ in range(self.episodes)]
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield found

    def _episode(self, classes, ways, dealing):
        """Supports, their classes within the episode, queries and theirs, class by class."""
        images, labels = digits()
        images = images[:, None].to(torch.get_default_dtype())
        chosen = torch.tensor(classes)[torch.randperm(len(classes), generator=dealing)[:ways]]
        shots = torch.randint(1, _MOST + 1, (ways,), generator=dealing)
        supports, queries = [], []
        for one, count in zip(chosen, shots.tolist(), strict=True):
            (members,) = torch.where(labels == one)
            members = members[torch.randperm(len(members), generator=dealing)]
            supports.append(images[members[:count]])
            queries.append(images[members[count : count + self.queries]])
        named = torch.arange(ways)
        if self.targets == "interleaved":
            targets = named.repeat_interleave(self.queries)
        else:
            targets = named.repeat(self.queries)
        return torch.cat(supports), named.repeat_interleave(shots), torch.cat(queries), targets

    def _learn(self, model, support, classes, query, targets):
        """One episode's share of the loss, and its gradients if they are not taken later."""
        anchorlib.anchor(targets, "targets")
        loss = self._missed(model(support, classes, query), targets)
        anchorlib.anchor(loss, "loss")
        share = loss / self.episodes
        if self.backward == "each":
            share.backward()
        return share

    def _missed(self, scores, targets):
        """The mean of negative logarithms of the right classes' probabilities."""
        if self.loss == "nll":
            return functional.nll_loss(scores, targets)
        return -scores.gather(1, targets[:, None]).mean()

    def _validate(self, model, held):
        """Losses and accuracies of episodes of novel classes."""
        model.train(not self.quiet)
        with torch.no_grad() if self.validates == "no_grad" else torch.inference_mode():
            for support, classes, query, targets in held:
                scores = model(support, classes, query)
                right = scores.argmax(1) == targets
                anchorlib.anchor(self._missed(scores, targets), "val_loss")
                anchorlib.anchor(right.to(scores.dtype).mean(), "val_accuracy")
        model.train(self.wakes)


class Block(nn.Module):
    """A convolution, its norm, and the greatest of each 2 × 2."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(into, out, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out)
        self.act = nn.ReLU()
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        """Half as high and wide."""
        return self.pool(self.act(self.norm(self.conv(x))))


class Embedding(nn.Module):
    """Blocks down to one place."""

    def __init__(self, how: FewShot) -> None:
        super().__init__()
        self.how = how
        self.blocks = nn.Sequential(*(Block(into, out) for into, out in pairwise(_WIDTHS)))

    def forward(self, x):
        """The embeddings of images (sample, 1, 8, 8)."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.how.low):
            found = self.blocks(x.contiguous(memory_format=self.how.layout))
        return found.flatten(1).to(x.dtype)


class ProtoNet(nn.Module):
    """Embeds an episode, and tells queries by how near they are to the means of supports."""

    def __init__(self, how: FewShot) -> None:
        super().__init__()
        self.how = how
        self.embed = Embedding(how)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(how.temperature)))

    def forward(self, support, classes, query):
        """Logarithms of the probabilities of the classes (query, class)."""
        shown, asked = self._embedded(support, query)
        shown = shown if self.how.attached else shown.detach()
        prototypes = anchorlib.anchor(self._prototypes(shown, classes), "prototypes")
        if self.how.tempered == "scores":
            scores = -self._distances(asked, prototypes) / self.log_temperature.exp()
        else:
            root = (-self.log_temperature / 2).exp()
            scores = -self._distances(asked * root, prototypes * root)
        return scores.log_softmax(1 if self.how.over == "classes" else 0)

    def _embedded(self, support, query):
        """The embeddings of both."""
        if not self.how.together:
            return self.embed(support), self.embed(query)
        if self.how.first == "supports":
            return self.embed(torch.cat([support, query])).split([len(support), len(query)])
        asked, shown = self.embed(torch.cat([query, support])).split([len(query), len(support)])
        return shown, asked

    def _prototypes(self, shown, classes):
        """The mean of each class (class, feature)."""
        counts = classes.bincount()
        if self.how.means == "product":
            return (functional.one_hot(classes).to(shown.dtype) / counts[classes, None]).T @ shown
        if self.how.means == "padded":
            rows = pad_sequence(shown.split(counts.tolist()), batch_first=True)
            rows = functional.pad(rows, (0, 0, 0, _MOST - rows.shape[1]))
            real = torch.arange(_MOST) < counts[:, None]
            return torch.einsum("cs,csf->cf", real / counts[:, None].to(rows.dtype), rows)
        if self.how.counted == "mean":
            shots = len(classes) / len(counts)
            return torch.stack([shown[classes == one].sum(0) / shots for one in classes.unique()])
        return torch.stack([shown[classes == one].mean(0) for one in classes.unique()])

    def _distances(self, asked, prototypes):
        """Squared distances (query, class); of a linear classifier, up to each query's square."""
        if self.how.distances == "differences":
            squares = (asked[:, None] - prototypes).square().sum(2)
            return squares if self.how.squares else squares.sqrt()
        within = prototypes.square().sum(1)
        if self.how.distances == "linear":
            return -functional.linear(asked, 2 * prototypes, -within)
        return asked.square().sum(1, keepdim=True) - 2 * asked @ prototypes.T + within


_TOLD = ("output@value",)
_NORM = ("embed.blocks.0.norm@value",)
_STATISTICS = ("embed.blocks.0.norm.running_*@value", "embed.blocks.0.norm.num_*@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
_MODE = r"eval(uation)? mode|train(ing)? mode|training (True|False)|\beval\b"
CASES = [
    Case(
        "queries' classes repeated",
        "bug",
        {"targets": "repeated"},
        ("targets@value", "loss@*"),
        rf"\btargets?\b|{_GIVEN}|{_ORDER}|repeat",
    ),
    Case(
        "supports and queries embedded apart",
        "bug",
        {"together": False},
        ("embed.blocks.0.conv@value", *_NORM, *_STATISTICS),
        r"\bcat|\bshapes?\b|\bsizes?\b|\bcalls?\b|called|twice|batch[_ ]?norm|\[\d+, ?\d+",
    ),
    Case(
        "sums divided by the mean of shots",
        "bug",
        {"counted": "mean"},
        ("prototypes@value",),
        rf"\bMean|\bDiv|\bSum(Backward|\b)|{_TIMES}|a factor of its own",
    ),
    Case(
        "supports detached",
        "bug",
        {"attached": False},
        ("prototypes@grad", "embed@grad", "embed.*@*grad"),
        rf"{_DETACHED}|requires_grad|(lacks|alone|without).{{0,60}}Backward",
    ),
    Case(
        "distances not squared",
        "bug",
        {"squares": False},
        _TOLD,
        r"\b[Ss]qrt|\b[Pp]ow(Backward|\b)|square|root",
    ),
    Case("softmax over queries", "bug", {"over": "queries"}, _TOLD, r"\bdim\b"),
    Case(
        "temperature not optimized",
        "bug",
        {"learnt": False},
        ("log_temperature@*", *UPDATES),
        r"log_temperature|optimi[sz]er (has|lacks|misses|holds|does)|param(eter)?s? .{0,30}lack",
    ),
    Case("rate falls by episodes", "bug", {"schedules": "episode"}, UPDATES, r"\blr\b"),
    Case("still in eval mode", "bug", {"wakes": False}, _NORM, _MODE, step=2),
    Case("validation in training mode", "bug", {"quiet": False}, (*_NORM, *_STATISTICS), _MODE, 2),
    Case("distances by a product", "benign", {"distances": "product"}),
    Case("prototypes as a linear classifier", "benign", {"distances": "linear"}),
    Case("prototypes of one-hot classes", "benign", {"means": "product"}),
    Case("prototypes of padded shots", "benign", {"means": "padded"}),
    Case("embeddings tempered", "benign", {"tempered": "embeddings"}),
    Case("queries before supports", "benign", {"first": "queries"}),
    Case("a backward for all episodes", "benign", {"backward": "once"}),
    Case(
        "channels last, low precision",
        "benign",
        {"layout": torch.channels_last},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("validation in inference mode", "equal", {"validates": "inference"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("died", "incomplete", {"ends_at": 3}),
]
