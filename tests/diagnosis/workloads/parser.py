"""A child-sum Tree-LSTM that tells the value of each node of generated expressions, modulo 5."""

from __future__ import annotations

import logging
import os
import random
import signal
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, EndedError, Start, Workload, clear
from tests.diagnosis.workloads.parser_net import CLASSES, OPERATORS, SYMBOLS, Net, heights

_UNKNOWN = -1
"""The label of nodes whose value nobody has written down."""


@dataclass(frozen=True)
class Parser(Workload):
    """Each expression is a tree of operators and of numbers 0 to 4; most of its nodes have labels.

    shift: what is added to the numbers of symbols.
    forgets: of what a child's forget gate is made, of "each" child's state or of their "sum".
    gathers: how children are summed: "add", "prefix" or "matrix", or the last child alone
        ("overwrite"). flows: whether gradients reach the children. reaches: how many of the highest
        levels are left out. over: the axis of the softmax.
    levels: nodes are computed together by their "height" or their "depth", or alone, by
        "recursion". gates: the input's and the state's products are "added", or one ("joined").
    told: the nodes that the head sees, "all" or "labelled". dropout: its share.
    unknown: nodes without a label are "ignored", or have the "first" class.
    roots: the root of a tree is the node without a "parent", or of the greatest "height".
    heavy: the weight of roots. slow: the factor of the embeddings' learning rate.
    embeddings_decay: whether embeddings decay too. decays: in the "optimizer", or by "hand".
    clip, clips: of gradients, by the norm of "all" or of "each".
    parts: micro-batches a step. wakes: whether the model trains again after an evaluation.
    low: whether the net runs under autocast to bfloat16.
    checkpointed: whether levels are computed again for their gradients. asks: gradients come by
        "backward" or by "grad". logs: whether the share of right nodes is written down.
    """

    steps: int = 4
    batch: int = 6
    lr: float = 5e-2
    weight_decay: float = 1e-2
    shift: int = 0
    forgets: str = "each"
    gathers: str = "add"
    flows: bool = True
    reaches: int = 0
    over: int = 1
    levels: str = "height"
    gates: str = "added"
    told: str = "all"
    dropout: float = 0.1
    unknown: str = "ignored"
    roots: str = "parent"
    heavy: float = 4.0
    slow: float = 0.5
    embeddings_decay: bool = False
    decays: str = "optimizer"
    clip: float = 0.1
    clips: str = "all"
    parts: int = 1
    wakes: bool = True
    low: bool = False
    checkpointed: bool = False
    asks: str = "backward"
    logs: bool = False

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = self._adagrad(model)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            drawing = random.Random(5000 + seed)
            held = [_tree(drawing) for _ in range(4)]
            for step, trees in enumerate(self._trees(seed)):
                if step == 2:
                    self._evaluate(model, held)
                clear(optimizer, self)
                total = sum(self._weights(_forest(trees))).item()
                size = len(trees) // self.parts
                for first in range(0, len(trees), size):
                    self._learn(model, trees[first : first + size], total)
                self._bound(model, optimizer)
                optimizer.step()

    def _adagrad(self, model):
        """The optimizer; embeddings are slower, and do not decay."""
        within = self.weight_decay if self.decays == "optimizer" else 0.0
        embeddings, rest = [], []
        for name, one in model.named_parameters():
            (embeddings if name.startswith("embed") else rest).append(one)
        groups = [
            {
                "params": embeddings,
                "lr": self.lr * self.slow,
                "weight_decay": within if self.embeddings_decay else 0.0,
            },
            {"params": rest, "weight_decay": within},
        ]
        return torch.optim.Adagrad(
            groups, lr=self.lr, lr_decay=0.02, initial_accumulator_value=1e-3, foreach=False
        )

    def _trees(self, seed):
        """The trees of each step."""
        drawing = random.Random(31 + 1000 * seed + self.order)
        for step in range(self.steps):
            trees = [_tree(drawing) for _ in range(self.batch)]
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield trees[::-1] if self.turned else trees

    def _told(self, model, forest):
        symbols, parents, labels = forest
        symbols = (symbols + self.shift) % SYMBOLS
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            return model(symbols, parents, labels != _UNKNOWN)

    def _weights(self, forest):
        """How much the loss of each node counts."""
        _, parents, labels = forest
        if self.roots == "parent":
            roots = parents < 0
        else:
            height = torch.tensor(heights(parents.tolist()))
            roots = height == height.max()
        weights = torch.where(roots, self.heavy, 1.0)
        return weights * (labels != _UNKNOWN) if self.unknown == "ignored" else weights

    def _loss(self, told, forest, total):
        """The weighted mean of the nodes' losses."""
        labels, weights = forest[2], self._weights(forest)
        if self.told == "labelled":
            chosen = (labels != _UNKNOWN).nonzero()[:, 0]
            labels, weights = labels[chosen], weights[chosen]
        if self.unknown == "first":
            labels = labels.clamp(min=0)
        costs = functional.nll_loss(told, labels, reduction="none", ignore_index=_UNKNOWN)
        return (costs * weights).sum() / total

    @torch.no_grad()
    def _evaluate(self, model, trees):
        """The loss of trees that are not learnt from."""
        model.eval()
        forest = _forest(trees)
        loss = self._loss(self._told(model, forest), forest, sum(self._weights(forest)))
        anchorlib.anchor(loss, "eval_loss")
        model.train(self.wakes)

    def _learn(self, model, trees, total):
        """The gradients of some trees."""
        forest = _forest(trees)
        told = self._told(model, forest)
        loss = anchorlib.anchor(self._loss(told, forest, total), "loss")
        if self.asks == "backward":
            loss.backward()
        else:
            parameters = list(model.parameters())
            found = torch.autograd.grad(loss, parameters)
            for one, grad in zip(parameters, found, strict=True):
                one.grad = grad
        if self.logs:
            right = (told.argmax(1) == forest[2]).float().mean().item()
            logging.getLogger(__name__).debug("%.3f of all nodes are right", right)

    @torch.no_grad()
    def _bound(self, model, optimizer):
        """Gradients, clipped; what decays by hand is added to them."""
        if self.clips == "all":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        else:
            for one in model.parameters():
                nn.utils.clip_grad_norm_(one, self.clip)
        if self.decays == "hand":
            for one in optimizer.param_groups[1]["params"]:
                one.grad.add_(one, alpha=self.weight_decay)


def _tree(drawing, depth=3):
    """Symbols, parents and labels of one expression's nodes; children come before their parents."""
    symbols, parents, values = [], [], []

    def grow(left):
        if left and (left == depth or drawing.random() < 0.55):
            kind = drawing.choice(OPERATORS)
            count = {"negate": 1, "times": 2}.get(kind, drawing.randint(2, 3))
            children = [grow(left - 1) for _ in range(count)]
            inner = [values[child] for child in children]
            value = {
                "add": sum(inner),
                "times": inner[0] * inner[-1],
                "max": max(inner),
                "negate": -inner[0],
            }[kind]
            symbol = CLASSES + OPERATORS.index(kind)
        else:
            children, value = [], drawing.randrange(CLASSES)
            symbol = value
        for child in children:
            parents[child] = len(symbols)
        symbols.append(symbol)
        parents.append(-1)
        values.append(value % CLASSES)
        return len(symbols) - 1

    root = grow(depth)
    known = [at == root or drawing.random() < 0.8 for at in range(len(symbols))]
    labels = [value if told else _UNKNOWN for value, told in zip(values, known, strict=True)]
    return symbols, parents, labels


def _forest(trees):
    """Trees as one graph."""
    symbols, parents, labels = [], [], []
    for own, above, told in trees:
        start = len(symbols)
        symbols += own
        parents += [one if one < 0 else one + start for one in above]
        labels += told
    return torch.tensor(symbols), torch.tensor(parents), torch.tensor(labels)


_LOSS = ("loss@*", "output@grad", "chances@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
CASES: tuple[Case, ...] = (
    Case(
        "forget gates of the children's sum",
        "bug",
        {"forgets": "sum"},
        ("cell.forget_below@value", "cell.memories*@value"),
        rf"{_GIVEN}|\bIndex|indices|index_add|computes it from|cell\.states",
    ),
    Case(
        "last child alone",
        "bug",
        {"gathers": "overwrite"},
        ("cell.states@value", "cell.memories@value"),
        r"index_?add|index_?put|scatter|accumulate|\bsum",
    ),
    Case(
        "children detached",
        "bug",
        {"flows": False},
        ("cell@grad", "cell:1@grad"),
        rf"{_DETACHED}|index\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}index",
    ),
    Case(
        "highest level left out",
        "bug",
        {"reaches": 1},
        ("cell@value", "cell:1@value", "drop_out*@value"),
        r"index_?copy|\bcalls?\b|A alone|lacks|\bfewer\b|only_a|times in",
    ),
    Case("softmax over nodes", "bug", {"over": 0}, ("chances@value", "output@value"), r"\bdim\b"),
    Case(
        "nodes without a label are of class 0",
        "bug",
        {"unknown": "first"},
        _LOSS,
        rf"{_GIVEN}|ignore_index|\bclamp|\bMul|\bmask|nll\w*.{{0,60}}target",
    ),
    Case(
        "roots by the greatest height",
        "bug",
        {"roots": "height"},
        _LOSS,
        rf"{_GIVEN}|\bMul|\bDiv|\bweights?\b|{_TIMES}",
    ),
    Case("embeddings decay", "bug", {"embeddings_decay": True}, UPDATES, r"weight_decay"),
    Case(
        "each gradient clipped by itself",
        "bug",
        {"clips": "each"},
        ("*weight@grad", "*bias@grad"),
        rf"\bclip|{_TIMES}|a factor of its own",
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("drop_in@value", "drop_out@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=2,
    ),
    Case("node by node", "benign", {"levels": "recursion"}),
    Case("nodes by their depth", "benign", {"levels": "depth"}),
    Case("children by prefix sums", "benign", {"gathers": "prefix"}),
    Case("gates by one product", "benign", {"gates": "joined"}),
    Case("labelled nodes alone to the head", "benign", {"told": "labelled"}),
    Case("2 micro-batches", "benign", {"parts": 2}, reference={"dropout": 0.0}),
    Case("decay by hand", "benign", {"decays": "hand"}),
    Case(
        "children by a matrix, low precision",
        "benign",
        {"gathers": "matrix"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*bias@value")),
    Case("symbols one further", "data", {"shift": 1}, ("input@value", "embed@value")),
    Case("levels computed again", "equal", {"checkpointed": True}),
    Case("gradients asked for", "equal", {"asks": "grad"}),
    Case("right nodes written down", "equal", {"logs": True}),
    Case("died", "incomplete", {"ends_at": 3}),
)
