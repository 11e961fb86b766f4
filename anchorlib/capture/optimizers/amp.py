"""torch's GradScaler, observed: the loss scale of gradients, and the steps that it skips.

GradScaler has no hooks, so its `scale` and `step` are wrapped while a session is open. A step that
GradScaler skips ends a step of the session too: its non-finite gradients are recorded with the flag
"skipped". GradScaler always calls the step of a fused optimizer. It first sets two attributes on
the optimizer, the scale and a tensor that says whether gradients are not finite; if so, the step
has no effect. These attributes are read here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import Optimizer

from anchorlib.capture.eager import Observer
from anchorlib.capture.recording import UNSCALED, ScaleAndFlags
from anchorlib.record import Flag
from anchorlib.torch_private import scale_of

__all__ = ["ScalerHooks", "fused_scaling"]

_Maybe = Callable[[], torch.Tensor | None]


def _nothing() -> None:
    """Return None; stands for a weak reference to a scaled loss while no loss was scaled."""


class ScalerHooks:
    """Wraps the methods `scale` and `step` of GradScaler for one session.

    observer: gets the loss scale, by which gradients are multiplied from then on. on_skipped:
        called with the optimizer after each step that GradScaler skipped.
    """

    def __init__(self, observer: Observer, on_skipped: Callable[[Optimizer], None]) -> None:
        self._observer = observer
        self._on_skipped = on_skipped
        self._stepped: set[int] = set()
        self._scaled: tuple[_Maybe, _Maybe] = (_nothing, _nothing)
        observer.unscaled = self.unscaled
        self._scale, self._step = GradScaler.scale, GradScaler.step
        self._ours = (self._wrapped_scale(), self._wrapped_step())
        GradScaler.scale, GradScaler.step = self._ours  # type: ignore[method-assign]

    def stepping(self, optimizer: Optimizer) -> None:
        """Note that `optimizer` has stepped, which means that GradScaler did not skip its step."""
        self._stepped.add(id(optimizer))

    def _wrapped_scale(self) -> Callable[..., Any]:
        original = self._scale

        @functools.wraps(original)
        def scale(scaler: GradScaler, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            self._observer.guarded(lambda: self._note_scale(scaler))
            self._observer.guarded(lambda: self._remember(scaled, outputs))
            return scaled

        return scale

    def _note_scale(self, scaler: GradScaler) -> None:
        # Not get_scale(), which would wait for the accelerator. A disabled scaler has no scale.
        current = scale_of(scaler)
        if not self._observer.closed and scaler.is_enabled() and current is not None:
            self._observer.recorder.header("amp.grad_scaler", True)
            self._observer.scaling = ScaleAndFlags(
                scale=current.detach().clone(), flags=Flag.SCALED
            )

    def _remember(self, scaled: Any, outputs: Any) -> None:
        if isinstance(scaled, torch.Tensor) and isinstance(outputs, torch.Tensor):
            self._scaled = ref(scaled), ref(outputs)

    def unscaled(self, scaled: torch.Tensor) -> torch.Tensor:
        """Return the loss from which GradScaler made `scaled`; `scaled` itself if unknown.

        Only the loss that was scaled last is known, and only while it lives.
        """
        after, before = self._scaled
        loss = before() if after() is scaled else None
        return scaled if loss is None else loss

    def _wrapped_step(self) -> Callable[..., Any]:
        original = self._step

        @functools.wraps(original)
        def step(scaler: GradScaler, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._stepped.discard(id(optimizer))
            result = original(scaler, optimizer, *args, **kwargs)
            self._observer.guarded(lambda: self._after_step(scaler, optimizer))
            return result

        return step

    def _after_step(self, scaler: GradScaler, optimizer: Any) -> None:
        self._observer.scaling = UNSCALED
        skipped = id(optimizer) not in self._stepped
        if skipped and scaler.is_enabled() and not self._observer.closed:
            self._on_skipped(optimizer)

    def close(self) -> None:
        """Put GradScaler's own methods back, unless other code has wrapped ours."""
        if GradScaler.scale is self._ours[0]:
            GradScaler.scale = self._scale  # type: ignore[method-assign]
        if GradScaler.step is self._ours[1]:
            GradScaler.step = self._step  # type: ignore[method-assign]


def fused_scaling(optimizer: Optimizer) -> ScaleAndFlags:
    """Return the loss scale of a fused optimizer's gradients, with the flag for a skipped step.

    GradScaler sets both as attributes on the optimizer before each step: the scale, and a tensor
    that is not zero if gradients are not finite. Without these attributes, UNSCALED is returned.
    """
    scale = getattr(optimizer, "grad_scale", None)
    found_inf = getattr(optimizer, "found_inf", None)
    if not isinstance(scale, torch.Tensor):
        return UNSCALED
    return ScaleAndFlags(scale=scale.detach().clone(), skipped=found_inf)
