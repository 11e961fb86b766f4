"""Recording from inside the frameworks that run a training loop, with one line of the user's code.

    lightning      AnchorCallback, for Trainer(callbacks=[...]) of lightning or pytorch_lightning
    transformers   AnchorCallback, for Trainer(callbacks=[...])
    accelerate     watch, for the model and optimizer that accelerator.prepare returned
    training       the session that these three open and close

Each module imports its own framework only, and `anchorlib` imports none of them.
"""

from __future__ import annotations

__all__: list[str] = []
