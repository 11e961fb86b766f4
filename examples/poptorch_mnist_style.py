"""A program in PopTorch's vocabulary that runs on torch, and shows the range of its gradients.

It trains 784-320-100-10 on real digits as PopTorch's tutorial on observing tensors does, and only
the import differs: options, anchors, a data loader, a training model. It prints the log2 histogram
of the gradients that the last call anchored. Within `anchorlib.start`, or with ANCHOR_RUN set, the
anchors of every call are also stored:

    python examples/poptorch_mnist_style.py
    ANCHOR_RUN=pop python examples/poptorch_mnist_style.py; anchor hist pop --tensor fc1.weight
"""

from __future__ import annotations

import argparse

import torch
from digits import load
from torch import nn
from torch.utils.data import TensorDataset

import anchorlib
import anchorlib.poptorch as poptorch

BATCH = 100
TENSORS = [
    "Gradient___fc1.weight",
    "Gradient___fc3.weight",
    "Gradient___fc2.bias",
    "Gradient___fc1.bias",
    "Gradient___fc3.bias",
    "Gradient___fc2.weight",
]


class BasicLinearModel(nn.Module):
    """Three fully connected layers; in training the model also returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, 320)
        self.fc2 = nn.Linear(320, 100)
        self.fc3 = nn.Linear(100, 10)
        self.log_softmax = nn.LogSoftmax(dim=1)
        self.loss = nn.NLLLoss()
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> object:
        """Return the log-probabilities (batch, 10) of images; in training also the loss."""
        x = torch.flatten(x, start_dim=1)
        x = self.relu(self.fc1(x))
        x = self.relu(self.fc2(x))
        x = self.log_softmax(self.fc3(x))
        if self.training:
            return x, self.loss(x, labels)
        return x


def show(histogram: anchorlib.Log2Histogram) -> None:
    """Print a line for each power of two."""
    most = max(histogram.bins.values())
    for exponent, count in histogram.bins.items():
        print(f"  2^{exponent:<4} {count:>8,} {'#' * round(50 * count / most)}")
    print(f"  zero   {histogram.zero:>8,}")
    if histogram.nan or histogram.inf:
        print(f"  nan {histogram.nan:,}, inf {histogram.inf:,}")


def options_for(device_iterations: int, gradient_accumulation: int) -> poptorch.Options:
    """Options that anchor all six gradients, of every micro-batch."""
    opts = poptorch.Options()
    opts.useIpuModel(True)
    opts.randomSeed(0)
    opts.deviceIterations(device_iterations)
    opts.Training.gradientAccumulation(gradient_accumulation)
    for name in TENSORS:
        opts.anchorTensor(name, name, output_mode=poptorch.OutputMode.All)
    return opts


def train(model: nn.Module, opts: poptorch.Options, epochs: int) -> poptorch.PoplarExecutor:
    """Train on digits, and return the training model after its last call."""
    images, labels = load()
    dataset = TensorDataset(images.reshape(-1, 1, 28, 28), labels)
    loader = poptorch.DataLoader(opts, dataset, batch_size=BATCH, shuffle=True)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training_model = poptorch.trainingModel(model, options=opts, optimizer=optimizer)
    size = loader.combinedBatchSize
    training_model.compile(torch.zeros(size, 1, 28, 28), torch.zeros(size).long())
    print("tensor names:", *training_model.getTensorNames())
    for epoch in range(epochs):
        for data, target in loader:
            _output, loss = training_model(data, target)
        print(f"epoch {epoch}: {len(loader)} calls of {size} images; last loss {loss.item():.4f}")
    return training_model


def main() -> None:
    """Train, then look at the gradients that the last call anchored."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device-iterations", type=int, default=2)
    parser.add_argument("--gradient-accumulation", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    opts = options_for(options.device_iterations, options.gradient_accumulation)
    model = BasicLinearModel()
    training_model = train(model.train(), opts, options.epochs)
    gradients = [training_model.getAnchoredTensor(name).flatten() for name in TENSORS]
    histogram = anchorlib.log2_histogram(torch.cat(gradients))
    print(f"gradients of the last call's micro-batches, {histogram.numel:,} elements:")
    show(histogram)
    training_model.destroy()


if __name__ == "__main__":
    main()
