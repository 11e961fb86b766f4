"""Messages between digits that look alike: degrees, attention over edges, a mean and a largest."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear

_WIDTH, _NEAR = 24, 4


@dataclass(frozen=True)
class Graph(Workload):
    """A node is an image; an edge leads from it to each of those that are nearest to it.

    first: the nearest one that counts, 0: itself. loops: whether a node sends to itself.
    degrees_of: the ends whose degrees a sum is divided by. lengths: how those of edges are told.
    gathers_at: the end of an edge that messages are added at. softmax: whether it is taken for each
        "node" or for "all" edges. begins: whether the largest message is at least 0.
    mean: whether a mean of messages is divided by their number. low: whether they are rounded.
    axis, correction: of the norm. decays_all: whether all layers decay, else the first one.
    labelled: whether the loss is of the labelled nodes alone. forgets: gradients, "before" they are
        computed or "behind" that.
    sums, adding, shifts_by, norm, edges: how it is written, of one mathematics.
    """

    batch: int = 40
    lr: float = 5e-3
    weight_decay: float = 0.05
    decoupled: bool = False
    first: int = 1
    loops: bool = True
    degrees_of: str = "targets"
    lengths: str = "plain"
    gathers_at: str = "targets"
    softmax: str = "node"
    slope: float = 0.2
    begins: bool = False
    mean: bool = True
    low: bool = False
    axis: int = 1
    correction: int = 0
    sums: bool = True
    decays_all: bool = False
    labelled: bool = True
    forgets: str = "before"
    written: str = "edges"
    adding: str = "index_add"
    shifts_by: str = "node"
    norm: str = "own"
    edges: str = "in order"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = self._optimizer(model)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                if self.forgets == "before":
                    clear(optimizer, self)
                logits = model(images.flatten(1))
                known = images.sum((1, 2)) * 8 % 3 != 0
                if not self.labelled:
                    known = torch.ones_like(known)
                loss = functional.cross_entropy(logits[known], labels[known])
                anchorlib.anchor(loss, "loss")
                loss.backward()
                if self.forgets == "behind":
                    clear(optimizer, self)
                optimizer.step()

    def _optimizer(self, model):
        entrance = list(model.enter.parameters())
        rest = [one for one in model.parameters() if not any(one is other for other in entrance)]
        decay = self.weight_decay if self.decays_all else 0.0
        return self.adam([{"params": entrance}, {"params": rest, "weight_decay": decay}])


class Norm(nn.Module):
    """A layer norm, by hand or torch's."""

    def __init__(self, how: Graph) -> None:
        super().__init__()
        self.how = how
        self.weight, self.bias = nn.Parameter(torch.ones(_WIDTH)), nn.Parameter(torch.zeros(_WIDTH))

    def forward(self, x):
        """x, normed."""
        how = self.how
        if how.norm == "torch":
            return functional.layer_norm(x, (_WIDTH,), self.weight, self.bias)
        spread, mean = torch.var_mean(x, how.axis, correction=how.correction, keepdim=True)
        return (x - mean) * torch.rsqrt(spread + 1e-5) * self.weight + self.bias


class Convolution(nn.Module):
    """A sum over neighbours, divided by the roots of both degrees."""

    def __init__(self, how: Graph) -> None:
        super().__init__()
        self.how = how
        self.fc = nn.Linear(_WIDTH, _WIDTH, bias=False)

    def forward(self, x, sources, targets):
        """x, mixed along the edges."""
        how, count = self.how, len(x)
        x = self.fc(x)
        if how.loops:
            every = torch.arange(count)
            sources, targets = torch.cat((sources, every)), torch.cat((targets, every))
        ends = targets if how.degrees_of == "targets" else sources
        degrees = torch.bincount(ends, minlength=count).clamp(min=1).float().rsqrt()
        weights = degrees[sources] * degrees[targets]
        if how.written == "dense":
            dense = torch.zeros(count, count).index_put(
                (targets, sources), weights, accumulate=True
            )
            return dense @ x
        return added(how, x[sources] * weights[:, None], targets, count)


class Attention(nn.Module):
    """Messages along edges, mixed by a softmax for each node, with their mean and the largest."""

    def __init__(self, how: Graph) -> None:
        super().__init__()
        self.how = how
        self.edge, self.node = nn.Linear(1, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.score, self.act = nn.Linear(2 * _WIDTH, 1), nn.LeakyReLU(how.slope)
        self.join = nn.Linear(3 * _WIDTH, _WIDTH)

    def forward(self, x, sources, targets, lengths):
        """x, mixed along the edges."""
        how, count = self.how, len(x)
        messages = torch.tanh(self.node(x)[sources] + self.edge(lengths))
        messages = messages.bfloat16().float() if how.low else messages
        scores = self.act(self.score(torch.cat((x[sources], x[targets]), 1)))[:, 0]
        weights = self._softmax(scores, targets, count)[:, None]
        ends = targets if how.gathers_at == "targets" else sources
        mixed = added(how, messages * weights, ends, count)
        total = added(how, messages, ends, count)
        if how.mean:
            total = total / torch.bincount(ends, minlength=count).clamp(min=1)[:, None]
        largest = torch.zeros(count, _WIDTH).scatter_reduce(
            0, ends[:, None].expand(-1, _WIDTH), messages, "amax", include_self=how.begins
        )
        return self.join(torch.cat((mixed, total, largest), 1))

    def _softmax(self, scores, targets, count):
        if self.how.softmax == "all":
            return scores.softmax(0)
        most = torch.zeros(count).scatter_reduce(
            0, targets, scores.detach(), "amax", include_self=False
        )
        shift = most[targets] if self.how.shifts_by == "node" else scores.detach().max()
        risen = (scores - shift).exp()
        return risen / added(self.how, risen, targets, count)[targets]


class Net(nn.Module):
    """Two layers of messages over the graph of the nearest."""

    def __init__(self, how: Graph) -> None:
        super().__init__()
        self.how = how
        self.enter, self.first, self.norm1 = nn.Linear(64, _WIDTH), Convolution(how), Norm(how)
        self.second, self.norm2 = Attention(how), Norm(how)
        self.act, self.head = nn.ELU(), nn.Linear(_WIDTH, 10)

    def forward(self, x):
        """The logits of each node."""
        sources, targets, lengths = self._edges(x)
        h = self.act(self.norm1(self.first(self.enter(x), sources, targets)))
        mixed = self.norm2(self.second(h, sources, targets, lengths))
        return self.head(torch.relu(h + mixed if self.how.sums else mixed))

    @torch.no_grad()
    def _edges(self, x):
        """The nodes that edges lead from and to, and how long the edges are."""
        how = self.how
        square = (x[:, None] - x).square().sum(-1)
        near = square.topk(_NEAR + 1, largest=False).indices[:, how.first : how.first + _NEAR]
        sources, targets = torch.arange(len(x)).repeat_interleave(_NEAR), near.flatten()
        if how.edges == "turned":
            sources, targets = sources.flip(0), targets.flip(0)
        lengths = square[sources, targets][:, None] / 64
        return sources, targets, lengths.sqrt() if how.lengths == "plain" else lengths


def added(how: Graph, x, at, count: int):
    """The sums of the rows of x that have the same place in `at`."""
    zeros = x.new_zeros(count, *x.shape[1:])
    if how.adding == "index_add":
        return zeros.index_add(0, at, x)
    return zeros.scatter_add(0, at.view(-1, *[1] * (x.ndim - 1)).expand_as(x), x)


_FIRST = ("first@value",)
_JOINED = ("second.join@value", "second@value")
_LOSS = ("loss@*", "output@grad", "head@grad")
_ROWS = r"\brows\b|[Ii]ndex"
CASES = [
    Case("gathered at the sources", "bug", {"gathers_at": "sources"}, _JOINED, _ROWS),
    Case("nearest is itself", "bug", {"first": 0}, _FIRST, rf"Slice|slice|{_ROWS}"),
    Case("no loops", "bug", {"loops": False}, _FIRST, rf"\bCat|\bcat\b|{_ROWS}"),
    Case(
        "degrees of the sources",
        "bug",
        {"degrees_of": "sources"},
        _FIRST,
        rf"degree|bincount|Mul|{_ROWS}",
    ),
    Case(
        "lengths squared",
        "bug",
        {"lengths": "squared"},
        ("second.edge@value",),
        r"[Ss]qrt|[Ss]quare|lengths",
    ),
    Case(
        "softmax over all edges",
        "bug",
        {"softmax": "all"},
        _JOINED,
        r"Softmax|softmax|\bExp|\bexp\b",
    ),
    Case("slope", "bug", {"slope": 0.01}, ("second.act@value",), r"negative_slope"),
    Case(
        "largest begins at zero",
        "bug",
        {"begins": True},
        _JOINED,
        r"include_self|ScatterReduce|scatter_reduce",
    ),
    Case("sum for mean", "bug", {"mean": False}, _JOINED, r"\bDiv|\bdiv\b|is [\d.]+ times A"),
    Case("messages rounded", "bug", {"low": True}, _JOINED, r"ToCopy|bfloat16"),
    Case(
        "normed over nodes",
        "bug",
        {"axis": 0},
        ("norm1@value",),
        r"\bdim\b|VarMean|var_mean",
    ),
    Case(
        "unbiased variance",
        "bug",
        {"correction": 1},
        ("norm1@value",),
        r"correction|unbiased|is [\d.]+ times A",
    ),
    Case(
        "layer not added",
        "bug",
        {"sums": False},
        ("head@value",),
        r"\bAdd|\badd\b",
    ),
    Case(
        "loss of all nodes",
        "bug",
        {"labelled": False},
        _LOSS,
        rf"mask|shape|{_ROWS}",
    ),
    Case("all layers decay", "bug", {"decays_all": True}, UPDATES, r"weight_decay"),
    Case(
        "forgotten before the step",
        "bug",
        {"forgets": "behind"},
        ("*@grad", *UPDATES),
        r"zero_grad|zeros?\b|did not step|no step",
        reference={"set_to_none": False},
    ),
    Case("dense product", "benign", {"written": "dense"}),
    Case("edges turned", "benign", {"edges": "turned"}),
    Case("shifted by the largest of all", "benign", {"shifts_by": "all"}),
    Case("layer_norm of torch", "benign", {"norm": "torch"}),
    Case("foreach optimizer", "benign", {"implementation": "foreach"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("fused optimizer", "benign", {"implementation": "fused"}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("added by scatter_add", "equal", {"adding": "scatter_add"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
]
