"""Accelerate: `with watch(accelerator, model, optimizer, run="run1") as session: ...`.

step        an optimizer step, where `accumulate()` lets one happen
pass_index  a batch that is accumulated
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


def watch(  # what prepare gave back, then as `start` and `watch`
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: object = None,
    run: str | None = None,
    *,
    tensors: Sequence[str] | str | None = None,
    prefix: str = "",
    **options: Any,
) -> Session:
    """Open a session on this process's rank and watch what `accelerator.prepare` gave back.

    optimizer: one, or a list in the order in which they step, of which the last counts the steps.
    run, options: as for `anchorlib.start`. tensors, prefix: as for `Session.watch`.

    The caller closes it, as with `anchorlib.start`. Raises what `start` and `watch` raise (no
    session is open then), and TypeError for an unknown option.
    """
    training = ObservedTraining(run, tensors, prefix, options)
    return training.begin(model, optimizer, rank=accelerator.process_index)
