"""A small Swin transformer on digits: windows, shifted windows with masks, and merged patches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut, warmed

_WIDTH, _HEADS, _WINDOW, _GRID, _CLASSES = 16, 2, 4, 8, 10


@dataclass(frozen=True)
class Swin(Workload):
    """Digits are enlarged to 16 × 16; two stages of two blocks see 8 × 8, then 4 × 4 patches.

    tiles: how masks are laid along the batch of windows, "repeat" all of them for each image, or
        "interleave" each as often as there are images. back: what shifted patches are rolled back
        by, "shift" or "-shift". stride: what is added to the stride of
        rows in the index of relative positions.
    path: the highest share of stochastic depth. divides: whether what it keeps is divided by how
        much it keeps. gamma: what layer scales begin with.
    smoothing: where labels are smoothed, in the "loss", the "targets" or "both". smooth: how much.
    tables: whether tables of relative positions decay too. warmup: steps of rising rate. clip: the
        norm that gradients are clipped to. parts: micro-batches a step.
    low: whether the net runs under autocast to bfloat16.
    patches, windows, masking, attention, merging, scaling, keeps: other ways to write the same
        mathematics.
    """

    steps: int = 4
    batch: int = 8
    lr: float = 5e-3
    weight_decay: float = 0.1
    adam_eps: float = 1e-6
    tiles: str = "repeat"
    back: str = "shift"
    stride: int = 0
    path: float = 0.0
    divides: bool = True
    gamma: float = 0.3
    smoothing: str = "loss"
    smooth: float = 0.1
    tables: bool = False
    warmup: int = 2
    clip: float = 1.0
    parts: int = 1
    low: bool = False
    patches: str = "conv"
    windows: str = "roll"
    masking: str = "finite"
    attention: str = "own"
    merging: str = "slices"
    scaling: str = "after"
    keeps: str = "all"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for small, labels in self.images(seed):
                pixels = small[:, None].to(torch.get_default_dtype())
                images = functional.interpolate(pixels, scale_factor=2.0, mode="bilinear")
                clear(optimizer, self)
                for part, named in cut(self.parts, images, labels):
                    loss = self._loss(self._told(model, part), named)
                    loss = loss * (len(part) / len(images))
                    anchorlib.anchor(loss, "loss")
                    loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()
                if self.evaluates:
                    model.eval()
                    with torch.no_grad():
                        self._told(model, images)
                    model.train()

    def _told(self, model, images):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(images)
        return logits.to(images.dtype)

    def _loss(self, logits, labels):
        """Cross-entropy with smoothed labels."""
        smooth = self.smooth if self.smoothing in ("loss", "both") else 0.0
        if self.smoothing == "loss":
            return functional.cross_entropy(logits, labels, label_smoothing=smooth)
        targets = functional.one_hot(labels, _CLASSES).to(logits.dtype)
        targets = targets * (1 - self.smooth) + self.smooth / _CLASSES
        return functional.cross_entropy(logits, targets, label_smoothing=smooth)

    def _groups(self, model):
        """What decays, and what does not: biases, norms, layer scales and tables of positions."""
        named = [
            (one.ndim > 1 and (self.tables or not name.endswith("table")), one)
            for name, one in model.named_parameters()
        ]
        return [
            {
                "params": [one for deep, one in named if deep is decays],
                "weight_decay": self.weight_decay if decays else 0.0,
            }
            for decays in (True, False)
        ]


class Patches(nn.Conv2d):
    """Patches of 2 × 2 pixels as tokens, by a convolution or a product."""

    def __init__(self, how) -> None:
        super().__init__(1, _WIDTH, 2, stride=2)
        self.how = how

    def forward(self, x):
        """Tokens (image, row, column, channel)."""
        if self.how.patches == "conv":
            return super().forward(x).permute(0, 2, 3, 1)
        patches = functional.unfold(x, 2, stride=2).transpose(1, 2)
        tokens = functional.linear(patches, self.weight.flatten(1), self.bias)
        return tokens.unflatten(1, (_GRID, _GRID))


class Position(nn.Module):
    """A learnt bias for each head and each relative position in a window."""

    def __init__(self, how, heads: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty((2 * _WINDOW - 1) ** 2, heads))
        nn.init.trunc_normal_(self.table, std=0.02)
        axes = torch.arange(_WINDOW)
        places = torch.stack(torch.meshgrid(axes, axes, indexing="ij")).flatten(1)
        far = places[:, :, None] - places[:, None] + _WINDOW - 1
        self.index = far[0] * (2 * _WINDOW - 1 + how.stride) + far[1]

    def forward(self, high: int, wide: int):
        """Biases (head, query, key) of a window of such a size."""
        index = self.index.view(4 * (_WINDOW,))[:high, :wide, :high, :wide]
        return self.table[index.reshape(high * wide, -1)].permute(2, 0, 1)


class Scaled(nn.Linear):
    """A linear layer with a layer scale behind it."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out)
        self.how, self.gamma = how, nn.Parameter(torch.full((out,), how.gamma))

    def forward(self, x):
        """x, projected and scaled."""
        if self.how.scaling == "after":
            return super().forward(x) * self.gamma
        return functional.linear(x, self.weight * self.gamma[:, None], self.bias * self.gamma)


class Attention(nn.Module):
    """Attention inside windows; keys have no bias, from which softmax would be free."""

    def __init__(self, how, width: int, heads: int) -> None:
        super().__init__()
        self.how, self.heads = how, heads
        self.position = Position(how, heads)
        self.q, self.v = nn.Linear(width, width), nn.Linear(width, width)
        self.k, self.out = nn.Linear(width, width, bias=False), Scaled(how, width, width)

    def forward(self, x, apart, high: int, wide: int):
        """Windows (image and window, token, channel), mixed; apart: what may not see what."""
        q, k, v = (
            one(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for one in (self.q, self.k, self.v)
        )
        bias = self.position(high, wide)
        if apart is not None:
            bias = bias + self._mask(apart, len(x), bias.dtype)
        if self.how.attention == "own":
            scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2) + bias
            mixed = scores.softmax(-1) @ v
        else:
            bias = bias.expand(len(x), *bias.shape[-3:])
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _mask(self, apart, count: int, dtype):
        low = -100.0 if self.how.masking == "finite" else -torch.inf
        mask = torch.zeros(apart.shape, dtype=dtype).masked_fill(apart, low)
        images = count // len(mask)
        if self.how.tiles == "repeat":
            return mask.repeat(images, 1, 1)[:, None]
        return mask.repeat_interleave(images, 0)[:, None]


class Path(nn.Module):
    """Stochastic depth: the branch of some samples is left out."""

    def __init__(self, how, rate: float) -> None:
        super().__init__()
        self.how, self.keep = how, 1 - rate

    def forward(self, x):
        """x, in parts."""
        if not self.training or self.keep == 1:
            return x
        kept = x.new_empty(len(x), 1, 1, 1).bernoulli_(self.keep)
        return x * (kept.div_(self.keep) if self.how.divides else kept)


class Block(nn.Module):
    """Attention in windows, shifted or not, and a net of two layers."""

    def __init__(self, how, width: int, heads: int, grid: int, shift: int, rate: float) -> None:
        super().__init__()
        self.how, self.grid, self.shift = how, grid, shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(how, width, heads)
        self.up, self.act = nn.Linear(width, 2 * width), nn.GELU()
        self.down = Scaled(how, 2 * width, width)
        self.path1, self.path2 = Path(how, rate), Path(how, rate)
        self.bounds = (0, shift, *range(shift + _WINDOW, grid, _WINDOW), grid)
        rows = torch.bucketize(
            torch.arange(grid), torch.tensor([grid - _WINDOW, grid - shift]), right=True
        )
        areas = _split((3 * rows[:, None] + rows)[None, :, :, None])[..., 0]
        apart = areas[:, :, None] != areas[:, None] if shift else None
        self.register_buffer("apart", apart, persistent=False)

    def forward(self, x):
        """x, moved."""
        normed = self.norm1(x)
        sliced = self.shift and self.how.windows == "slices"
        x = x + self.path1(self._regions(normed) if sliced else self._windows(normed))
        return x + self.path2(self.down(self.act(self.up(self.norm2(x)))))

    def _windows(self, x):
        """Attention in windows of one size; what wraps around is masked."""
        shift = self.shift
        x = x.roll((-shift, -shift), (1, 2)) if shift else x
        x = self.attention(_split(x), self.apart, _WINDOW, _WINDOW)
        many = self.grid // _WINDOW
        x = x.view(-1, many, many, _WINDOW, _WINDOW, x.shape[-1]).transpose(2, 3)
        x = x.reshape(-1, self.grid, self.grid, x.shape[-1])
        shift = shift if self.how.back == "shift" else -shift
        return x.roll((shift, shift), (1, 2)) if shift else x

    def _regions(self, x):
        """Attention in each region that a shift leaves, smaller ones at the edges."""
        sizes = [end - begin for begin, end in zip(self.bounds, self.bounds[1:], strict=False)]
        rows = []
        for band in x.split(sizes, 1):
            parts = [
                self.attention(part.flatten(1, 2), None, *part.shape[1:3]).view(part.shape)
                for part in band.split(sizes, 2)
            ]
            rows.append(torch.cat(parts, 2))
        return torch.cat(rows, 1)


def _split(x):
    """Images (image, row, column, channel) as windows (image and window, token, channel)."""
    x = x.unflatten(1, (-1, _WINDOW)).unflatten(3, (-1, _WINDOW)).transpose(2, 3)
    return x.reshape(-1, _WINDOW**2, x.shape[-1])


class Merge(nn.Module):
    """Patches of 2 × 2 tokens, normed and reduced to half of their channels."""

    def __init__(self, how, width: int) -> None:
        super().__init__()
        self.how, self.norm = how, nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x):
        """x, coarser."""
        if self.how.merging == "slices":
            corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
            return self.reduction(self.norm(torch.cat(corners, -1)))
        x = x.unflatten(1, (-1, 2)).unflatten(3, (-1, 2)).permute(0, 1, 3, 4, 2, 5).flatten(3)
        norm, weight = self.norm, self.reduction.weight
        x = functional.layer_norm(x, norm.normalized_shape, eps=norm.eps)
        return functional.linear(x, weight * norm.weight, weight @ norm.bias)


class Net(nn.Module):
    """Two stages; between them patches are merged."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.patches = Patches(how)
        self.blocks = nn.ModuleList(
            Block(how, _WIDTH, _HEADS, _GRID, shift, rate * how.path)
            for shift, rate in ((0, 0.0), (_WINDOW // 2, 1 / 3))
        )
        self.merge = Merge(how, _WIDTH)
        self.coarse = nn.ModuleList(
            Block(how, 2 * _WIDTH, 2 * _HEADS, _GRID // 2, 0, rate * how.path)
            for rate in (2 / 3, 1.0)
        )
        self.norm, self.head = nn.LayerNorm(2 * _WIDTH), nn.Linear(2 * _WIDTH, _CLASSES)

    def forward(self, x):
        """Logits of images (image, 1, row, column)."""
        x = self._run(self.blocks, self.patches(x))
        x = self._run(self.coarse, self.merge(x))
        return self.head(self.norm(x).mean((1, 2)))

    def _run(self, blocks, x):
        for block in blocks:
            if self.how.keeps == "all" or not torch.is_grad_enabled():
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=False)
        return x


_ATTENDED = ("blocks.1.attention@value", "blocks.1.attention.out@value")
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements which change places."""
_TIMES = r"is -?[\d.]+ times A|a factor of its own"
CASES: tuple[Case, ...] = (
    Case(
        "masks interleaved",
        "bug",
        {"tiles": "interleave"},
        _ATTENDED,
        rf"repeat|mask|softmax|\bAdd|{_ORDER}",
    ),
    Case(
        "rolled on instead of back",
        "bug",
        {"back": "-shift"},
        ("blocks.1@value", "blocks.1.path1@value", "blocks.1.norm2@value"),
        rf"\b[Rr]oll|shift|{_ORDER}",
    ),
    Case(
        "rows of relative positions one too near",
        "bug",
        {"stride": -1},
        ("blocks.0.attention.position@value",),
        r"\b[Ii]ndex|\bindices",
    ),
    Case(
        "labels smoothed twice",
        "bug",
        {"smoothing": "both"},
        ("loss@*", "output@grad", "head@grad"),
        r"label_smoothing|smooth|targets?\b|cross_entropy|CrossEntropy|\bLogSoftmax|nll",
        reference={"smoothing": "targets"},
    ),
    Case("tables of positions decay", "bug", {"tables": True}, UPDATES, r"weight_decay"),
    Case(
        "kept paths not divided",
        "bug",
        {"divides": False},
        ("blocks.1.path1@value",),
        rf"\b[Dd]iv|{_TIMES}|\bMul|bernoulli",
        reference={"path": 0.3},
    ),
    Case("regions for masked windows", "benign", {"windows": "slices"}),
    Case(
        "attention by torch, masks of minus infinity",
        "benign",
        {"masking": "infinite", "attention": "torch"},
    ),
    Case("merging's norm folded into its weights", "benign", {"merging": "folded"}),
    Case("layer scale folded into weights", "benign", {"scaling": "weights"}),
    Case("three unequal parts, smoothed targets", "benign", {"parts": 3, "smoothing": "targets"}),
    Case("patches by a product", "benign", {"patches": "unfold"}),
    Case("fused AdamW, batch turned", "benign", {"implementation": "fused", "turned": True}),
    Case(
        "attention by torch, low precision",
        "benign",
        {"attention": "torch"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*table@value")),
    Case("blocks computed again", "equal", {"keeps": "edges"}, reference={"path": 0.3}),
    Case("evaluated after each step", "equal", {"evaluates": True}, reference={"path": 0.3}),
    Case("died", "incomplete", {"ends_at": 3}),
)
