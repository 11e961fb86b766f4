"""Two ranks that Lightning launches itself: `python lightning_ranks.py STORE`, no run named."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from anchorlib.integrations.lightning import AnchorCallback
from tests.anchorlib.integrations import lightning_runs as runs

runs.fit(
    runs.made(),
    [AnchorCallback(store=sys.argv[1])],
    strategy="ddp",
    devices=2,
    accumulate_grad_batches=2,
    train=8,
    validate=2,
)
