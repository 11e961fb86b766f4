"""The trainings whose steps are observed, each always from the same start.

tiny   24 × (Linear 16, Tanh), batch 8: a step is Python and dispatch, as beside a GPU
tf     6 encoder layers of width 256 on 4 × 32 tokens
mlp    784-256-256-10, batch 64
unet   a small diffusion-style U-Net: hundreds of small tensors
wide   784-320-100-10, batch 1,000: a step of few calls and much arithmetic
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from benchmarks.observing.unet import UNet

__all__ = ["TRAININGS", "Training"]

Optimizer = Callable[..., torch.optim.Optimizer]


class Training:
    """A model with its loss on data that stays the same, and its optimizer."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module], torch.Tensor],
        optimizer: Optimizer = torch.optim.SGD,
    ) -> None:
        self.model = model
        self.loss = loss
        self.optimizer = optimizer(model.parameters(), lr=1e-3)

    def step(self) -> None:
        """One step."""
        loss = self.loss(self.model)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Encoder(nn.Module):
    """Tokens, embedded; 6 encoder layers; what each token might be."""

    def __init__(self, tokens: int = 512, width: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True) for _ in range(6)
        )
        self.head = nn.Linear(width, tokens)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits for each token."""
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(x)
        return logits


def tiny() -> Training:
    """Python and dispatch are most of its step."""
    torch.manual_seed(0)
    layers = [layer for _ in range(24) for layer in (nn.Linear(16, 16), nn.Tanh())]
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    return Training(nn.Sequential(*layers), lambda model: (model(x) - y).square().mean())


def tf() -> Training:
    """A transformer."""
    torch.manual_seed(0)
    x, y = torch.randint(512, (2, 4, 32))
    return Training(
        Encoder(),
        lambda model: functional.cross_entropy(model(x).flatten(0, 1), y.flatten()),
    )


def mlp() -> Training:
    """A perceptron with a small batch."""
    return perceptron((784, 256, 256, 10), 64)


def wide() -> Training:
    """A perceptron with a large batch."""
    return perceptron((784, 320, 100, 10), 1000)


def perceptron(widths: tuple[int, ...], batch: int) -> Training:
    """Linear layers with a ReLU between each two."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    x, y = torch.randn(batch, widths[0]), torch.randint(widths[-1], (batch,))
    model = nn.Sequential(*layers[:-1])
    return Training(model, lambda model: functional.cross_entropy(model(x), y))


def unet() -> Training:
    """The noise of noisy images is predicted; AdamW."""
    torch.manual_seed(0)
    x, noise, time = torch.randn(8, 3, 16, 16), torch.randn(8, 3, 16, 16), torch.rand(8)
    return Training(
        UNet(), lambda model: functional.mse_loss(model(x + noise, time), noise), torch.optim.AdamW
    )


TRAININGS = {"tiny": tiny, "tf": tf, "mlp": mlp, "unet": unet, "wide": wide}
