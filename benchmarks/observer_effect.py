"""Does observing change what compiled code computes? Bits with and without anchors.

Inductor keeps low-precision intermediates in float32 inside a fused kernel; an anchor makes one of
them a tensor, which rounds it. `torch._inductor.config.emulate_precision_casts = True` rounds them
all, so that observing changes nothing. fp32 is the control.

    python benchmarks/observer_effect.py
"""

from __future__ import annotations

import tempfile
import warnings

import torch
from torch import nn

import anchorlib

NETS = 4


class Net(nn.Module):
    """Layers of pointwise chains that inductor fuses."""

    def __init__(self, width: int, *, anchored: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.anchored = anchored

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of a few activations."""
        for n, layer in enumerate(self.layers):
            h = torch.sin(layer(x) * 1.1 + 0.3)
            if self.anchored:
                anchorlib.anchor(h, f"h{n}")
            x = torch.softmax(h * 1.5, -1) + nn.functional.layer_norm(h, h.shape[-1:])
        return x.float().pow(2).mean()


def gradients(seed: int, dtype: torch.dtype, *, anchored: bool) -> list[torch.Tensor]:
    """Loss and gradients of one compiled step."""
    torch.manual_seed(seed)
    torch._dynamo.reset()  # noqa: SLF001  # each measurement compiles for itself
    model = Net(32, anchored=anchored).to(dtype)
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(64, 32).to(dtype)
    if not anchored:
        loss = compiled(x)
        loss.backward()
    else:
        with (
            tempfile.TemporaryDirectory() as store,
            anchorlib.start("effect", store=store),
        ):
            loss = compiled(x)
            loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def changed(dtype: torch.dtype) -> tuple[int, float]:
    """In how many of `NETS` nets any bit changed, and the largest relative change."""
    count, worst = 0, 0.0
    for seed in range(NETS):
        plain = gradients(seed, dtype, anchored=False)
        seen = gradients(seed, dtype, anchored=True)
        if not all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True)):
            count += 1
        for a, b in zip(plain, seen, strict=True):
            scale = a.float().abs().max().item() or 1.0
            worst = max(worst, (a.float() - b.float()).abs().max().item() / scale)
    return count, worst


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    print(f"{'dtype':10}{'emulate_precision_casts':>25}{'nets changed':>14}{'largest change':>16}")
    for dtype, emulated in (
        (torch.float32, False),
        (torch.bfloat16, False),
        (torch.bfloat16, True),
    ):
        torch._inductor.config.emulate_precision_casts = emulated  # noqa: SLF001
        count, worst = changed(dtype)
        name = str(dtype).removeprefix("torch.")
        print(f"{name:10}{emulated!s:>25}{f'{count} of {NETS}':>14}{worst:>16.2g}")


if __name__ == "__main__":
    main()
