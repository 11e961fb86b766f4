"""Finds the loss: the scalar on which `backward` is called is recorded as `loss`.

    a scalar                        is recorded once for each backward, in the pass that it ends
    a scalar from GradScaler        is recorded as it was before scaling
    a tensor of several elements    is no loss, and not recorded

Where an anchor or a watched module is called `loss`, no other loss is recorded. While a session is
open, `torch.autograd.backward` is wrapped, which `Tensor.backward` calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from anchorlib.capture.dynamo_marks import never_traced
from anchorlib.capture.eager import Observer
from anchorlib.capture.inline.hooks import Anchors
from anchorlib.torch_private import graph_task

__all__ = ["LOSS", "LossFinder"]

LOSS: Final = "loss"


class LossFinder:
    """Finds and records the losses of one session, by wrapping `torch.autograd.backward`.

    anchors: says whether an anchor is called `loss`, and what to record of a loss. taken: returns
        whether a watched model records a tensor of a given name.
    """

    def __init__(self, observer: Observer, anchors: Anchors, taken: Callable[[str], bool]) -> None:
        self._observer = observer
        self._anchors = anchors
        self._taken = taken
        self._backward = torch.autograd.backward
        self._ours = self._wrapped()
        torch.autograd.backward = self._ours

    def _wrapped(self) -> Callable[..., Any]:
        original = self._backward

        @never_traced
        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            # Inside a backward, checkpointing calls this: its tensors are no losses.
            if not self._observer.closed and graph_task() == -1:
                self._observer.guarded(lambda: self._see(tensors))
            return original(tensors, *args, **kwargs)

        return backward

    def _see(self, tensors: Any) -> None:
        if self._anchors.knows(LOSS) or self._taken(LOSS):
            return
        for tensor in [tensors] if isinstance(tensors, torch.Tensor) else tuple(tensors):
            if tensor.numel() == 1 and (tensor.is_floating_point() or tensor.is_complex()):
                self._record(self._observer.unscaled(tensor))

    def _record(self, loss: torch.Tensor) -> None:
        observer, plan = self._observer, self._anchors.found_plan(LOSS)
        clock = observer.clock
        # As in backward: the loss belongs to the pass of its forward, and opens no other pass.
        at = clock.count(plan.counters, backward=True, phase=clock.phase)
        streams = plan.streams("value", at.phase)
        if streams:
            observer.recorder.observe(streams, at, loss.detach())
            observer.lineage.see(plan, loss, at, loss.grad_fn, grad=False)

    def close(self) -> None:
        """Put torch's own function back, unless other code has wrapped ours."""
        if torch.autograd.backward is self._ours:
            torch.autograd.backward = self._backward
