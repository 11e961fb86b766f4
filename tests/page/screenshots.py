"""Pictures of the page for the documentation: `make screenshots`.

Trains a small model twice; from step 20 on the second run computes one tanh by another formula.
Then it trains once with each of some learning rates, and twice with that step traced.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

import anchorlib
import anchorlib.diagnosis
from anchorlib.report import page
from tests.page.browsing import CHROMIUM, browser_of, settled

STEPS = 60
LEAVES = 20
RATES = (3e-3, 1e-3, 6e-3, 1e-2, 3e-2)
COLORS = 256


class Tanh(nn.Module):
    """tanh, or the same function by another formula."""

    other = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) if not self.other else 2 * torch.sigmoid(2 * x) - 1


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.tanh = Tanh()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.tanh(self.up(self.norm(x))))


class Model(nn.Module):
    """Three blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.block = nn.ModuleList(Block(32) for _ in range(3))
        self.head = nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.block:
            x = block(x)
        return self.head(x)


def train(
    name: str,
    store: str,
    *,
    leaves: bool = False,
    rate: float = 3e-3,
    steps: int = STEPS,
    traced: int | None = None,
) -> anchorlib.Run:
    """One run; where it `leaves`, it does so in the tanh of the middle block; `traced`: a step."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    data = torch.Generator().manual_seed(1)
    with anchorlib.start(name, store=store, attributes={"formula": str(leaves)}) as session:
        session.watch(model, optimizer=optimizer)
        session.watch(model, tensors=["*.weight@value", "*.weight@delta"], optimizer=optimizer)
        for step in range(steps):
            if step == traced:
                session.trace(1)
            model.block[1].tanh.other = leaves and step >= LEAVES
            x = torch.randn(64, 16, generator=data)
            loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
            anchorlib.anchor(loss, "loss", grad=False)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return anchorlib.open_run(name, store)


def main() -> None:
    """Write the pictures into the folder that is named."""
    folder = Path(sys.argv[1])
    assert CHROMIUM is not None, "apt-get install chromium"
    with tempfile.TemporaryDirectory() as store, browser_of(CHROMIUM) as browser:
        runs = [train("tanh", store, leaves=False), train("sigmoid", store, leaves=True)]
        compared = [anchorlib.diagnosis.compare(*runs)]
        rates = [train(f"lr{rate}", store, rate=rate, steps=20) for rate in RATES]
        swept = [anchorlib.diagnosis.compare(rates[0], other) for other in rates[1:]]
        one, two, sweep = (Path(store, f"{name}.html") for name in ("one", "two", "sweep"))
        sweep.write_text(page(rates, swept), encoding="utf-8")
        one.write_text(page(runs[:1]), encoding="utf-8")
        two.write_text(page(runs, compared), encoding="utf-8")
        for name, path, settings in (
            ("report-one", one, {}),
            ("report-two", two, {}),
            ("report-sweep", sweep, {"viewport": {"width": 1280, "height": 900}}),
            ("report-two-dark", two, {"color_scheme": "dark"}),
            ("report-narrow", two, {"viewport": {"width": 600, "height": 1500}}),
        ):
            shoot(browser, path, folder / f"{name}.png", settings)
        pair = [
            train(f"{name}-traced", store, leaves=leaves, steps=LEAVES + 1, traced=LEAVES)
            for name, leaves in (("tanh", False), ("sigmoid", True))
        ]
        drawn = Path(store, "drawn.html")
        drawn.write_text(page(pair, [anchorlib.diagnosis.compare(*pair)]), encoding="utf-8")
        shoot(browser, drawn, folder / "report-operations.png", {}, part=".vicinities details")


def shoot(
    browser: Any, path: Path, file: Path, settings: dict[str, Any], *, part: str = ""
) -> None:
    """One picture, of a page or of a part of it, in few colours."""
    visited = settled(
        browser, path.as_uri(), **{"viewport": {"width": 1280, "height": 1180}, **settings}
    )
    shown = visited.page.locator(part).first if part else visited.page
    shown.screenshot(path=file)
    visited.close()
    Image.open(file).convert("RGB").quantize(COLORS).save(file, optimize=True)


if __name__ == "__main__":
    main()
