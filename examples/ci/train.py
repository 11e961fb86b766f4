"""Three steps of a small network, of which every tensor is recorded: a check for pull requests.

The store and the run's name come from ANCHOR_STORE and ANCHOR_RUN, which same_bits.py sets.
"""

from __future__ import annotations

import torch
from torch import nn

import anchorlib


class Net(nn.Module):
    """Two layers, and a scale between them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(16, 32), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One number for each row of x."""
        return self.fc2(torch.tanh(self.fc1(x)) * 0.1)


def main() -> None:
    """Train from a fixed seed, so that only a change of the code can change a bit."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(mode=True)
    torch.set_num_threads(1)  # how work is shared among threads changes how sums are rounded
    model, x = Net(), torch.randn(8, 16)
    optimizer = torch.optim.AdamW(model.parameters())
    with anchorlib.start() as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(3):
            loss = (model(x) - x.mean(1, keepdim=True)).pow(2).mean()
            anchorlib.anchor(loss, "loss")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
