"""Lightning: `Trainer(callbacks=[AnchorCallback("run1", tensors=["*@grad"])])`.

    step        an optimizer step; with several optimizers, which means manual optimisation, a
                batch in which any of them stepped
    pass_index  a batch that is accumulated into the step; in manual optimisation a forward+backward
    phase       "train"; "eval" in validation; "sanity" in the check before training

Works with `lightning` and with `pytorch_lightning`, whose trainers know callbacks by their methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from torch import nn

from anchorlib.capture import Session
from anchorlib.errors import MissingExtraError
from anchorlib.integrations.training import ObservedTraining

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    try:
        from pytorch_lightning import Callback
    except ModuleNotFoundError as fault:
        raise MissingExtraError(
            f"anchorlib.integrations.lightning needs Lightning, and there is {fault}: "
            "pip install 'anchorlib[lightning]'"
        ) from None

__all__ = ["AnchorCallback"]


class AnchorCallback(Callback):  # type: ignore[misc]  # the frameworks are not type-checked with us
    """Records the fit of a LightningModule, with the optimizers that it configured.

    run, options: the run's name, and keyword arguments, for `anchorlib.start`; the rank is the
        trainer's unless it is given. A fit from a checkpoint goes on in the same run, as the run's
        next attempt.
    tensors, prefix: as for `Session.watch`; tensors that the module itself anchors are recorded
        too.

    The run is closed when the fit ends, with an exception or without one. An unknown option raises
    TypeError here; errors of `start` and `watch` are raised when a fit begins.
    """

    def __init__(
        self,
        run: str | None = None,
        *,
        tensors: Sequence[str] | str | None = None,
        prefix: str = "",
        **options: Any,
    ) -> None:
        self._training = ObservedTraining(run, tensors, prefix, options)
        self._batch = _Batch()
        self._phase = ExitStack()
        self._by_batch = False
        self._optimizer_steps = 0
        self._step = 0  # the step that the last fit, or the fit of a loaded checkpoint, reached

    @property
    def session(self) -> Session | None:
        """The session while a fit is under way; None outside a fit."""
        return self._training.session

    # -- a fit begins and ends. on_fit_start would be too early: no checkpoint is loaded by then

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the session, so that the sanity check is recorded."""
        self._begin(trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the session, unless the sanity check has opened it already."""
        if self.session is None:
            self._begin(trainer, pl_module)

    def _begin(self, trainer: Any, module: Any) -> None:
        training, rank, steps = self._training, trainer.global_rank, trainer.global_step
        first = (self._step or steps) if steps else 0
        optimizers = list(trainer.optimizers)
        named = training.run is not None or trainer.world_size == 1
        if named or rank == 0:
            training.begin(module, optimizers, rank=rank, first_step=first)
        # A run without a name is named after the time, which each rank would read for itself.
        if not named:
            training.run = trainer.strategy.broadcast(self.session and self.session.run)
            if rank != 0:
                training.begin(module, optimizers, rank=rank, first_step=first)
        assert self.session is not None
        self.session.watch(self._batch, tensors=[])
        self._optimizer_steps = steps
        self._by_batch = not module.automatic_optimization and len(optimizers) > 1
        if self._by_batch:
            # An explicit step makes the session count no optimizer steps: several end one step.
            self.session.step(self.session.current_step)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's
        """Close the run."""
        self._end(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002  # Lightning's
        """Close the run; Lightning itself goes on to raise the exception."""
        self._end(exception)

    def _end(self, fault: BaseException | None) -> None:
        self._phase.close()
        if self.session is not None:
            self._step = self.session.current_step
        self._training.end(fault)

    # -- steps, passes and phases

    def on_train_batch_start(self, *_arguments: Any) -> None:
        """Begin a pass of the session; each batch of the training is one pass."""
        self._batch()

    def on_train_batch_end(self, trainer: Any, *_arguments: Any) -> None:
        """In manual optimisation with several optimizers, end the step if one of them stepped.

        In all other trainings the session itself ends a step when the optimizer steps.
        """
        if self._by_batch and self.session and trainer.global_step > self._optimizer_steps:
            self._optimizer_steps = trainer.global_step
            self.session.step()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's
        """Enter the phase "eval", or "sanity" during the check before training."""
        if self.session is not None:
            name = "sanity" if trainer.sanity_checking else "eval"
            self._phase.enter_context(self.session.phase(name))

    def on_validation_batch_start(self, *_arguments: Any) -> None:
        """Begin a pass of the validation phase."""
        self._batch()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's
        """Leave the validation phase, back to "train"."""
        self._phase.close()

    # -- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return {"step": the present step}, which goes into the checkpoint.

        Outside a fit, the step is the one that the last fit reached.
        """
        return {"step": self._step if self.session is None else self.session.current_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the step from which the next fit counts.

        state_dict: the dict that `state_dict` returned when the checkpoint was written.
        """
        self._step = state_dict["step"]


class _Batch(nn.Module):
    """A module that is watched and called once for each batch, so that its forward begins a pass.

    The user's module cannot serve for that: Lightning calls its `training_step`, which need not
    call its forward.
    """

    def forward(self) -> None:
        """Compute nothing; only the call matters, as it begins a pass."""
