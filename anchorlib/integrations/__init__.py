"""Recording from inside the frameworks that run a training loop: one line each.

    lightning      AnchorCallback, for Trainer(callbacks=[...]) of lightning or pytorch_lightning
    transformers   AnchorCallback, for Trainer(callbacks=[...])
    accelerate     watch, for what accelerator.prepare gave back
    training       the session that they open, and close again

A framework is imported by its own module alone, and nothing here by `anchorlib`.
"""

from __future__ import annotations

__all__: list[str] = []
