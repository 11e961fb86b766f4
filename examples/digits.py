"""Real images for the examples: scikit-learn's digits as 28×28, or MNIST from a folder."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn


def load(mnist: Path | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (n, 784) in 0…1 and labels (n,).

    mnist: a folder with MNIST's train-images-idx3-ubyte and train-labels-idx1-ubyte (.gz or not).
    """
    if mnist is not None:
        images = _idx(mnist, "train-images-idx3-ubyte", header=16).reshape(-1, 784)
        labels = _idx(mnist, "train-labels-idx1-ubyte", header=8)
        return torch.tensor(images).float() / 255, torch.tensor(labels).long()
    digits = load_digits()
    small = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    large = nn.functional.interpolate(small, size=(28, 28), mode="bilinear", align_corners=False)
    return large.flatten(1), torch.tensor(digits.target)


def _idx(folder: Path, name: str, header: int) -> np.ndarray:
    """Return the bytes of one of MNIST's files without its header."""
    packed = folder / f"{name}.gz"
    data = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()
    return np.frombuffer(data, dtype=np.uint8, offset=header)


def batches(
    images: torch.Tensor, labels: torch.Tensor, size: int, seed: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return one epoch in shuffled batches of `size` images; the last batch may be smaller."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return [(images[part], labels[part]) for part in order.split(size)]
