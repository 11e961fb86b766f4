"""A reader of lines of digits: a convolutional recurrent net that is trained by CTC."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, digits

_LONGEST, _CLASSES, _HIDDEN = 4, 11, 16
_NEVER = -1e30


@dataclass(frozen=True)
class Liner(Workload):
    """Lines of two to four digits, each of its own width, are read column by column.

    multiple: of what the width of a batch is. sorts: whether lines are dealt by falling width.
    edge: how many columns past its end a line keeps. columns: how maps become sequences, by
        "permute" or "view". packs: whether the recurrent nets end where lines end.
    dropout: between the recurrent nets. blank: its class; digits are classes 1 to 10.
    over: the axis of the softmax. ends: what ends a line for the loss, its own "line" or the
        "batch". each: whether a line's loss is divided by its digits.
    total: steps of the schedule. every: after how many steps it moves on. momenta: whether the
        schedule cycles momentum too. wakes: whether the net trains again after an evaluation.
    clip: the largest norm of gradients. low: whether the net runs under autocast to bfloat16.
    convolution, cells, softmax, ctc, targets, keeps, parts: other ways to write the same
        mathematics.
    """

    batch: int = 8
    lr: float = 2e-2
    evaluates: bool = True
    multiple: int = 4
    sorts: bool = False
    edge: int = 0
    columns: str = "permute"
    packs: bool = True
    dropout: float = 0.2
    blank: int = 0
    over: int = 2
    ends: str = "line"
    each: bool = True
    total: int = 8
    every: int = 1
    momenta: bool = True
    wakes: bool = True
    clip: float = 5.0
    low: bool = False
    convolution: str = "torch"
    cells: str = "torch"
    softmax: str = "torch"
    ctc: str = "torch"
    targets: str = "padded"
    keeps: str = "all"
    parts: int = 1

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, self.lr, total_steps=self.total, cycle_momentum=self.momenta
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            shown = self._shown()
            for step, (images, labels) in enumerate(self.but({"batch": 32}).images(seed)):
                drawing = torch.Generator().manual_seed(9 + 100 * seed + step + 7 * self.order)
                batch = self._lines(images, labels, drawing)
                clear(optimizer, self)
                for part in self._cut(batch):
                    loss = self._loss(self._told(model, part), part)
                    loss = loss * (len(part[0]) / len(batch[0]))
                    anchorlib.anchor(loss, "loss")
                    loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                if step % self.every == self.every - 1:
                    schedule.step()
                if self.evaluates and step % 2 == 1:
                    self._evaluate(model, shown)

    def _lines(self, images, labels, drawing):
        """Lines of joined digits, their widths, their digits as classes, and how many they are."""
        count = len(images) // _LONGEST
        images = ((images + 1) / 2).to(torch.get_default_dtype()).view(count, _LONGEST, 8, 8)
        sizes = torch.randint(2, _LONGEST + 1, (count,), generator=drawing)
        wide = torch.randint(6, 11, (count, _LONGEST), generator=drawing)
        lines = [
            torch.cat(
                [
                    functional.interpolate(
                        images[at, place][None, None],
                        size=(8, int(wide[at, place])),
                        mode="bilinear",
                    )[0, 0]
                    for place in range(int(sizes[at]))
                ],
                1,
            )
            for at in range(count)
        ]
        widths = torch.tensor([line.shape[1] for line in lines])
        padded = -(-int(widths.max()) // self.multiple) * self.multiple
        pages = torch.stack([functional.pad(line, (0, padded - line.shape[1])) for line in lines])
        targets = labels.view(count, _LONGEST) + 1
        targets = targets * (torch.arange(_LONGEST) < sizes[:, None])
        order = torch.arange(count)
        if self.sorts:
            order = widths.argsort(descending=True, stable=True)
        return tuple(one[order] for one in (pages[:, None], widths, targets, sizes))

    def _shown(self):
        """Lines that are not learnt from."""
        images, labels = digits()
        return self._lines(images[:32], labels[:32], torch.Generator().manual_seed(5))

    def _cut(self, batch):
        """A batch as micro-batches."""
        return list(zip(*(one.chunk(self.parts) for one in batch), strict=True))

    def _told(self, model, part):
        """Logits (columns, lines, classes)."""
        pages, widths, *_ = part
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(pages, widths)
        return logits.to(pages.dtype)

    def _loss(self, logits, part):
        """The mean over lines of what each of a line's digits costs."""
        _, widths, targets, sizes = part
        ends = _columns(widths)
        if self.ends == "batch":
            ends = torch.full_like(ends, len(logits))
        if self.softmax == "torch":
            told = functional.log_softmax(logits, self.over)
        else:
            told = logits - logits.logsumexp(self.over, keepdim=True)
        if self.ctc == "own":
            return (_ctc(told, targets, ends, sizes, self.blank) / sizes).mean()
        if self.targets == "joined":
            targets = targets[torch.arange(_LONGEST) < sizes[:, None]]
        if self.each:
            return functional.ctc_loss(told, targets, ends, sizes, self.blank, zero_infinity=True)
        costs = functional.ctc_loss(
            told, targets, ends, sizes, self.blank, reduction="none", zero_infinity=True
        )
        return costs.mean()

    @torch.no_grad()
    def _evaluate(self, model, shown):
        """The loss of other lines, and how many of their digits are read wrongly."""
        model.eval()
        logits = self._told(model, shown)
        anchorlib.anchor(self._loss(logits, shown), "eval_loss")
        _, widths, targets, sizes = shown
        read = _greedy(logits, _columns(widths), self.blank)
        wrong = sum(
            _distance(line, wanted[:size].tolist())
            for line, wanted, size in zip(read, targets, sizes.tolist(), strict=True)
        )
        anchorlib.anchor(logits.new_tensor(wrong / int(sizes.sum())), "eval_error_rate")
        model.train(self.wakes)


class Net(nn.Module):
    """Three convolutions, then two recurrent nets over the columns that they leave."""

    def __init__(self, workload: Liner) -> None:
        super().__init__()
        self.workload = workload
        self.body = Body(workload)
        self.norm = nn.LayerNorm(24)
        self.lower = Reader(workload, 24, _HIDDEN)
        self.drop = nn.Dropout(workload.dropout)
        self.upper = Reader(workload, _HIDDEN, _CLASSES)

    def forward(self, pages, widths):
        """Logits (columns, lines, classes) of padded lines."""
        if self.workload.keeps == "all":
            maps = self.body(pages, widths)
        else:
            maps = checkpoint(self.body, pages, widths, use_reentrant=False)
        if self.workload.columns == "permute":
            columns = maps.squeeze(2).permute(2, 0, 1)
        else:
            columns = maps.reshape(maps.shape[3], maps.shape[0], maps.shape[1])
        ends = _columns(widths)
        return self.upper(self.drop(self.lower(self.norm(columns), ends)), ends)


class Body(nn.Module):
    """The convolutions: rows vanish, every second column stays, nothing is seen past the ends."""

    def __init__(self, workload: Liner) -> None:
        super().__init__()
        self.first = Stage(workload, 1, 8)
        self.second = Stage(workload, 8, 16)
        self.last = Convolution(workload, 16, 24, (2, 1), 0)

    def forward(self, pages, widths):
        """Maps (lines, channels, 1, columns)."""
        maps = functional.max_pool2d(self.first(pages, widths), 2)
        maps = functional.max_pool2d(self.second(maps, _columns(widths)), (2, 1))
        return functional.relu(self.last(maps))


class Stage(nn.Module):
    """A convolution whose maps are cut off where lines end."""

    def __init__(self, workload: Liner, inputs: int, outputs: int) -> None:
        super().__init__()
        self.edge = workload.edge
        self.conv = Convolution(workload, inputs, outputs, (3, 3), 1)

    def forward(self, maps, ends):
        """Maps of the same size."""
        inside = torch.arange(maps.shape[3]) < ends[:, None] + self.edge
        return functional.relu(self.conv(maps)) * inside[:, None, None].to(maps.dtype)


class Convolution(nn.Conv2d):
    """A convolution, or the same as a product with unfolded patches."""

    def __init__(self, workload: Liner, inputs: int, outputs: int, kernel, padding: int) -> None:
        super().__init__(inputs, outputs, kernel, padding=padding)
        self.way = workload.convolution

    def forward(self, maps):
        """Maps with other channels."""
        if self.way == "torch":
            return super().forward(maps)
        patches = functional.unfold(maps, self.kernel_size, padding=self.padding)
        high = maps.shape[2] + 2 * self.padding[0] - self.kernel_size[0] + 1
        made = self.weight.flatten(1) @ patches + self.bias[:, None]
        return made.unflatten(2, (high, -1))


class Reader(nn.Module):
    """A bidirectional LSTM over columns, and a linear map of both directions."""

    def __init__(self, workload: Liner, inputs: int, outputs: int) -> None:
        super().__init__()
        self.workload = workload
        self.lstm = nn.LSTM(inputs, _HIDDEN, bidirectional=True)
        self.out = nn.Linear(2 * _HIDDEN, outputs)

    def forward(self, columns, ends):
        """Columns (columns, lines, outputs)."""
        if self.workload.cells == "loop":
            ways = [self._way(columns, ends, suffix) for suffix in ("", "_reverse")]
            return self.out(torch.cat(ways, 2))
        if not self.workload.packs:
            return self.out(self.lstm(columns)[0])
        packed = pack_padded_sequence(columns, ends, enforce_sorted=False)
        told, _ = pad_packed_sequence(self.lstm(packed)[0], total_length=len(columns))
        return self.out(told)

    def _way(self, columns, ends, suffix):
        """What one direction says of each column, zero past the ends."""
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        weights = [getattr(self.lstm, name + suffix) for name in names]
        state = [columns.new_zeros(columns.shape[1], _HIDDEN)] * 2
        told = [None] * len(columns)
        times = range(len(columns))
        for time in reversed(times) if suffix else times:
            inside = (time < ends)[:, None]
            after = torch.lstm_cell(columns[time], state, *weights)
            state = [torch.where(inside, *pair) for pair in zip(after, state, strict=True)]
            told[time] = state[0] * inside
        return torch.stack(told)


def _columns(widths):
    """How many columns the net leaves of lines."""
    return (widths + 1) // 2


def _ctc(told, targets, ends, sizes, blank):
    """The costs of lines by the forward algorithm, in logarithms."""
    count = len(targets)
    states = torch.full((count, 2 * targets.shape[1] + 1), blank)
    states[:, 1::2] = targets
    skips = torch.zeros_like(states, dtype=torch.bool)
    skips[:, 2:] = (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])
    seen = told.gather(2, states.expand(len(told), -1, -1))
    start = torch.arange(states.shape[1]) < 2
    alpha = seen[0].masked_fill(~start, _NEVER)
    alphas = [alpha]
    for now in seen[1:]:
        one = functional.pad(alpha, (1, 0), value=_NEVER)[:, :-1]
        two = functional.pad(alpha, (2, 0), value=_NEVER)[:, :-2].masked_fill(~skips, _NEVER)
        alpha = torch.stack((alpha, one, two)).logsumexp(0) + now
        alphas.append(alpha)
    last = torch.stack(alphas)[ends - 1, torch.arange(count)]
    return -last.gather(1, torch.stack((2 * sizes, 2 * sizes - 1), 1)).logsumexp(1)


def _greedy(logits, ends, blank):
    """The best class of each column, without repetitions and blanks."""
    best = logits.argmax(2).T
    lines = (line[:end].unique_consecutive() for line, end in zip(best, ends, strict=True))
    return [line[line != blank].tolist() for line in lines]


def _distance(a, b):
    """How many edits make one line of the other."""
    row = list(range(len(b) + 1))
    for at, one in enumerate(a, 1):
        before, row[0] = row[0], at
        for place, other in enumerate(b, 1):
            before, row[place] = (
                row[place],
                min(row[place] + 1, row[place - 1] + 1, before + (one != other)),
            )
    return row[-1]


_LOSS = ("loss@*", "eval_loss@*", "output@grad", "upper@grad", "upper.out@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target|log_probs) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_STILL = {"dropout": 0.0}
CASES = [
    Case("last class is blank", "bug", {"blank": 10}, _LOSS, r"\bblank\b|ctc_?loss"),
    Case(
        "padding is read by the loss",
        "bug",
        {"ends": "batch"},
        _LOSS,
        r"input_?lengths?|ctc_?loss",
    ),
    Case("softmax over columns", "bug", {"over": 0}, _LOSS, r"\bdim\b"),
    Case(
        "not divided by digits",
        "bug",
        {"each": False},
        _LOSS,
        rf"reduction|\bDiv|\bclamp|\bMean|{_TIMES}",
    ),
    Case(
        "columns not packed",
        "bug",
        {"packs": False},
        ("lower.lstm@value", "lower.lstm:*@value", "lower.out@value", "lower@value"),
        rf"pack|batch_sizes|lengths|lstm|\bshapes?\b|{_GIVEN}",
    ),
    Case(
        "a column past the end",
        "bug",
        {"edge": 1},
        ("body.first@value",),
        rf"\bMul|mask|{_GIVEN}",
    ),
    Case(
        "columns by view",
        "bug",
        {"columns": "view"},
        ("norm@value",),
        rf"permute|transpose|\bview|reshape|squeeze|{_ORDER}",
    ),
    Case(
        "schedule moves on each epoch",
        "bug",
        {"every": 3},
        UPDATES,
        r"\blr\b|\bbetas?\b",
        step=1,
    ),
    Case("momentum not cycled", "bug", {"momenta": False}, UPDATES, r"\bbetas?\b|momentum"),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("drop@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=2,
    ),
    Case("own CTC", "benign", {"ctc": "own"}),
    Case("lines by width", "benign", {"sorts": True}, reference=_STILL),
    Case("padded further", "benign", {"multiple": 32}, reference=_STILL),
    Case("cells in a loop", "benign", {"cells": "loop"}),
    Case("two micro-batches", "benign", {"parts": 2}, reference=_STILL),
    Case("convolutions by unfolding", "benign", {"convolution": "unfold"}),
    Case("softmax by logsumexp", "benign", {"softmax": "own"}),
    Case(
        "convolutions by unfolding, low precision",
        "benign",
        {"convolution": "unfold"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight*@value", "*bias*@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("targets joined", "equal", {"targets": "joined"}),
    Case("convolutions computed again", "equal", {"keeps": "edges"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("died", "incomplete", {"ends_at": 3}),
]
