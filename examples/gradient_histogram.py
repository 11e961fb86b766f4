"""Are the gradients in range? The log2 histogram of all six gradients of a small classifier.

The program trains 784-320-100-10 on real digits and records the gradient of every parameter at
every step. Then it counts, for each tensor and over all batches, how many elements lie between 2^e
and 2^(e+1); zeros, NaN and infinities are counted apart.

    python examples/gradient_histogram.py
    python examples/gradient_histogram.py --mnist ~/mnist --epochs 3
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from digits import batches, load
from torch import nn

import anchorlib

GRADIENTS = ["re:fc[123]\\.(weight|bias)@grad"]


class Classifier(nn.Module):
    """Three fully connected layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, 320)
        self.fc2 = nn.Linear(320, 100)
        self.fc3 = nn.Linear(100, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (batch, 10) of images (batch, 784)."""
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return self.fc3(x)


def train(model: nn.Module, epochs: int, mnist: Path | None, session: anchorlib.Session) -> None:
    """Train with SGD, and record all gradients and the loss."""
    images, labels = load(mnist)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    session.watch(model, tensors=GRADIENTS, optimizer=optimizer)
    for epoch in range(epochs):
        for x, y in batches(images, labels, size=100, seed=epoch):
            loss = nn.functional.cross_entropy(model(x), y)
            anchorlib.anchor(loss, "loss", grad=False)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"trained {epochs} epochs on {len(images)} images; last loss {loss.item():.4f}")


def main() -> None:
    """Train, then print the range of each gradient's magnitudes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", default="digits", help="the run's name")
    parser.add_argument("--store", help="where runs live (default: anchors)")
    parser.add_argument("--overwrite", action="store_true", help="replace a run of that name")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--mnist", type=Path, help="a folder with MNIST's files, used instead")
    options = parser.parse_args()

    torch.manual_seed(0)
    with anchorlib.start(options.run, store=options.store, overwrite=options.overwrite) as session:
        train(Classifier(), options.epochs, options.mnist, session)

    run = anchorlib.open_run(options.run, store=options.store)
    print(f"{'gradient':12}{'elements':>12}{'zero':>12}{'nan':>6}{'inf':>6}   magnitudes")
    for info in run.tensors(*GRADIENTS):
        histogram = run.histogram(f"{info.name}@{info.kind}")
        low, high = min(histogram.bins), max(histogram.bins) + 1
        print(
            f"{info.name:12}{histogram.numel:>12,}{histogram.zero:>12,}"
            f"{histogram.nan:>6}{histogram.inf:>6}   2^{low} … 2^{high}"
        )


if __name__ == "__main__":
    main()
