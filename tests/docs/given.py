"""The names that a page takes for granted: the reader's own model, optimizer and data."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["given"]


class Model(nn.Module):
    """Two layers, called as the pages call them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Four logits."""
        return self.fc2(torch.relu(self.fc1(x)))


def given() -> dict[str, Any]:
    """model, optimizer, loader and loss_fn; ten batches, as histograms of ten steps are shown."""
    torch.manual_seed(0)
    model = Model()
    draw = [(torch.randn(8, 16), torch.randint(4, (8,))) for _ in range(10)]
    optimizer = torch.optim.Adam(model.parameters())
    return {
        "__name__": "__main__",
        "torch": torch,
        "model": model,
        "optimizer": optimizer,
        "loader": draw,
        "loss_fn": nn.functional.cross_entropy,
    }
