"""Small models, and short ways to run them as PopTorch does."""

from __future__ import annotations

import torch
from torch import nn

import anchorlib.poptorch as poptorch


class Add(nn.Module):
    """A module, so that its output has a name."""

    def forward(self, x, y):
        return x + y


class Identity(nn.Module):
    """Gives back what it is given."""

    def __init__(self):
        super().__init__()
        self.add = Add()

    def forward(self, x):
        return self.add(x, torch.zeros((), dtype=x.dtype))


class Plus(nn.Module):
    """Adds a weight that is zero and stays it, as PopART's own test does."""

    def __init__(self):
        super().__init__()
        self.add = Add()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        out = self.add(x, self.w)
        return out, 0.0 * out.abs().sum()


class Net(nn.Module):
    """PopTorch's own test model: two layers, the loss inside."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 10)
        self.fc2 = nn.Linear(10, 10)
        self.loss = nn.MSELoss()

    def forward(self, x, label=None):
        out = self.fc2(torch.relu(self.fc1(x)))
        return (out, self.loss(out, label)) if self.training else out


def executor(make, options):
    model = make()
    if any(True for _ in model.parameters()):
        return poptorch.trainingModel(model, options)
    return poptorch.inferenceModel(model, options)


def run(make, options, *args):
    """What one call gives back."""
    model = executor(make, options)
    try:
        return model(*args)
    finally:
        model.destroy()


def anchored(make, options, value, short):
    """What one call anchored."""
    model = executor(make, options)
    model(value)
    try:
        return model.getAnchoredTensor(short)
    finally:
        model.destroy()
