"""A small vision transformer and its port, which calls every module otherwise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import Case, Start, Workload, clear, renamed

_WIDTH, _HEADS = 32, 4
NAMES = {
    "patches": "stem",
    "layers": "h",
    "ln1": "attention_norm",
    "ln2": "ffn_norm",
    "mixer": "self_attn",
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "out": "o_proj",
    "up": "w1",
    "act": "nonlinearity",
    "down": "w2",
    "drop": "resid_dropout",
    "ln": "final_norm",
    "head": "classifier",
}
"""What the port calls them."""


@dataclass(frozen=True)
class ViT(Workload):
    """ported: whether every module has another name. post: norms behind the sums.

    swapped: whether queries and keys change places in the attention of block 1 (with masks that
    makes a difference). drop_first: whether dropout stands before the last projection.
    """

    lr: float = 3e-3
    ported: bool = False
    ln_eps: float = 1e-6
    approximate: str = "none"
    scale: float = 1.0
    post: bool = False
    swapped: bool = False
    dropout: float = 0.0
    drop_first: bool = False
    bias: bool = True
    position: float = 0.1
    pooled: str = "first"
    written: str = "torch"
    label_smoothing: float = 0.0
    clip: float = 1.0

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            if self.ported:
                renamed(model, NAMES)
            optimizer = self.adam(model.parameters())
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                clear(optimizer, self)
                loss = functional.cross_entropy(
                    model(images), labels, label_smoothing=self.label_smoothing
                )
                anchorlib.anchor(loss, "loss")
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()


def own(module: nn.Module, name: str) -> nn.Module:
    """A submodule, by the name that the first of both gave it."""
    held = module._modules.get(name)
    return module._modules[NAMES[name]] if held is None else held


class Mixer(nn.Module):
    """Attention."""

    def __init__(self, how: ViT, swapped: bool) -> None:
        super().__init__()
        self.how, self.swapped = how, swapped
        self.q, self.k, self.v = (nn.Linear(_WIDTH, _WIDTH, how.bias) for _ in range(3))
        self.out = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x):
        """Mix positions."""
        q, k, v = (own(self, name)(x).unflatten(-1, (_HEADS, -1)).transpose(1, 2) for name in "qkv")
        q, k = (k, q) if self.swapped else (q, k)
        scale = self.how.scale / math.sqrt(_WIDTH // _HEADS)
        if self.how.written == "own":
            mixed = (q @ k.transpose(-1, -2) * scale).softmax(-1) @ v
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, scale=scale)
        return own(self, "out")(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and MLP."""

    def __init__(self, how: ViT, swapped: bool = False) -> None:
        super().__init__()
        self.how = how
        self.ln1, self.ln2 = (nn.LayerNorm(_WIDTH, eps=how.ln_eps) for _ in range(2))
        self.mixer = Mixer(how, swapped)
        self.up, self.act = nn.Linear(_WIDTH, 2 * _WIDTH), nn.GELU(how.approximate)
        self.down, self.drop = nn.Linear(2 * _WIDTH, _WIDTH), nn.Dropout(how.dropout)

    def forward(self, x):
        """One residual block."""
        ln1, ln2, mixer, up, act, down, drop = (
            own(self, name) for name in ("ln1", "ln2", "mixer", "up", "act", "down", "drop")
        )
        if self.how.post:
            x = ln1(x + mixer(x))
            return ln2(x + drop(down(act(up(x)))))
        x = x + mixer(ln1(x))
        h = act(up(ln2(x)))
        return x + (down(drop(h)) if self.how.drop_first else drop(down(h)))


class Net(nn.Module):
    """Patches, positions, two layers, head."""

    def __init__(self, how: ViT) -> None:
        super().__init__()
        self.how = how
        self.patches = nn.Conv2d(1, _WIDTH, 2, 2)
        self.positions = nn.Parameter(torch.randn(16, _WIDTH) * how.position)
        self.layers = nn.ModuleList((Layer(how), Layer(how, how.swapped)))
        self.ln, self.head = nn.LayerNorm(_WIDTH, eps=how.ln_eps), nn.Linear(_WIDTH, 10)

    def forward(self, images):
        """Logits."""
        x = own(self, "patches")(images[:, None]).flatten(2).transpose(1, 2) + self.positions
        for layer in own(self, "layers"):
            x = layer(x)
        x = own(self, "ln")(x)
        return own(self, "head")(x[:, 0] if self.how.pooled == "first" else x.mean(1))


def _port(name: str, changes: dict, origin: tuple[str, ...], words: str, **more) -> list[Case]:
    """A difference in a model of the same names, and the same in the port of it."""
    return [
        Case(name, "bug", changes, origin, words, **more),
        Case(f"port: {name}", "bug", changes | {"ported": True}, origin, words, **more),
    ]


CASES = [
    *_port("norm eps", {"ln_eps": 1e-5}, ("layers.0.ln1@value",), r"eps=1e-0?[56]"),
    *_port("large norm eps", {"ln_eps": 1e-2}, ("layers.0.ln1@value",), r"eps=0\.01|eps=1e-0?6"),
    *_port("gelu approximate", {"approximate": "tanh"}, ("layers.0.act@value",), r"approximate"),
    *_port(
        "attention scale", {"scale": 0.5}, ("layers.0.mixer.out@value",), r"\bscale\b|0\.176|0\.088"
    ),
    *_port(
        "queries for keys",
        {"swapped": True},
        ("layers.1.mixer.out@value",),
        r"swap|exchang|other order",
    ),
    *_port(
        "norm behind the sum",
        {"post": True},
        ("layers.0.mixer.[qkv]@value", "layers.0.ln1@value", "layers.0.mixer*@value"),
        r"computes it from",
    ),
    *_port(
        "dropout earlier",
        {"drop_first": True},
        ("layers.0.drop@value", "layers.0.down@value"),
        r"computes it from",
        reference={"dropout": 0.1},
    ),
    *_port(
        "mean for first",
        {"pooled": "mean"},
        ("head@value",),
        r"MeanBackward|\bmean\b",
    ),
    Case(
        "port: clip", "bug", {"ported": True, "clip": 0.1}, ("*@grad",), r"clip|is [\d.]+ times A"
    ),
    Case(
        "port: weight decay",
        "bug",
        {"ported": True, "weight_decay": 0.1},
        ("*@updated", "*@delta"),
        r"weight_decay",
    ),
    Case(
        "smoothing behind rounding",
        "bug",
        {"written": "own", "label_smoothing": 0.1},
        ("loss@value", "head@grad", "output@grad"),
        r"smoothing",
    ),
    Case("port: other init", "data", {"ported": True, "init": 1}, ("*@value",)),
    Case("port: killed", "incomplete", {"ported": True, "killed_at": 3}),
    Case("port", "equal", {"ported": True}),
    Case("port, with dropout", "equal", {"ported": True}, reference={"dropout": 0.1}),
    Case("port, norms behind", "equal", {"ported": True}, reference={"post": True}),
    Case("again", "equal"),
    Case("port: own attention", "benign", {"ported": True, "written": "own"}),
    Case("port: foreach optimizer", "benign", {"ported": True, "implementation": "foreach"}),
    Case("port: fused optimizer", "benign", {"ported": True, "implementation": "fused"}),
    Case("own attention", "benign", {"written": "own"}),
    Case("port: 2 threads", "benign", {"ported": True, "threads": 2}),
]
