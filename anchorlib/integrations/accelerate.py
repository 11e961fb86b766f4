"""Accelerate: `with watch(accelerator, model, optimizer, run="run1") as session: ...`.

step        an optimizer step; `accumulate()` skips those of batches that are only accumulated
pass_index  a batch that is accumulated into the step
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from anchorlib.capture import Session
from anchorlib.integrations.training import ObservedTraining

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["watch"]


def watch(  # prepared objects first, then the arguments of `start` and `watch`
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: object = None,
    run: str | None = None,
    *,
    tensors: Sequence[str] | str | None = None,
    prefix: str = "",
    **options: Any,
) -> Session:
    """Open a session on this process's rank and watch a prepared model and its optimizer.

    model, optimizer: as `accelerator.prepare` returned them. Several optimizers are given as a list
        in the order in which they step; the last of them counts the steps.
    run, options: the run's name, and keyword arguments, for `anchorlib.start`.
    tensors, prefix: which tensors are recorded, and what precedes their names, as for
        `Session.watch`.

    The caller closes the session, like a session of `anchorlib.start`. Raises what `start` and
    `watch` raise, and TypeError for an unknown option; then no session is open.
    """
    training = ObservedTraining(run, tensors, prefix, options)
    return training.begin(model, optimizer, rank=accelerator.process_index)
