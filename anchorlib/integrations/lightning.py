"""Lightning: `Trainer(callbacks=[AnchorCallback("run1", tensors=["*@grad"])])`.

    step        an optimizer step; with several optimizers, which means manual optimisation, a
                batch in which any of them stepped
    pass_index  a batch that is accumulated; in manual optimisation each forward+backward
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

    run, options: as for `anchorlib.start`; the rank is the trainer's unless it is given. A fit from
        a checkpoint continues the run as its next attempt.
    tensors, prefix: as for `Session.watch`; what the module itself anchors is recorded too.

    The run is closed when the fit ends, with an exception or without. Raises TypeError for an
    unknown option; as a fit begins, what `start` and `watch` raise.
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
        self._step = 0  # where the last fit, or the one in a checkpoint, had come to

    @property
    def session(self) -> Session | None:
        """The session, while a fit is on."""
        return self._training.session

    # -- a fit begins and ends; checkpoints are not yet loaded in on_fit_start

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the session."""
        self._begin(trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the session, if no sanity check did."""
        if self.session is None:
            self._begin(trainer, pl_module)

    def _begin(self, trainer: Any, module: Any) -> None:
        training, rank, steps = self._training, trainer.global_rank, trainer.global_step
        first = (self._step or steps) if steps else 0
        optimizers = list(trainer.optimizers)
        named = training.run is not None or trainer.world_size == 1
        if named or rank == 0:
            training.begin(module, optimizers, rank=rank, first_step=first)
        if not named:  # a time stamp, perhaps, which each rank would read for itself
            training.run = trainer.strategy.broadcast(self.session and self.session.run)
            if rank != 0:
                training.begin(module, optimizers, rank=rank, first_step=first)
        assert self.session is not None
        self.session.watch(self._batch, tensors=[])
        self._optimizer_steps = steps
        self._by_batch = not module.automatic_optimization and len(optimizers) > 1
        if self._by_batch:
            self.session.step(self.session.current_step)  # from now on a step ends here alone

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's
        """Close the run."""
        self._end(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002  # Lightning's
        """Close the run; the exception goes on."""
        self._end(exception)

    def _end(self, fault: BaseException | None) -> None:
        self._phase.close()
        if self.session is not None:
            self._step = self.session.current_step
        self._training.end(fault)

    # -- steps, passes and phases

    def on_train_batch_start(self, *_arguments: Any) -> None:
        """A pass begins."""
        self._batch()

    def on_train_batch_end(self, trainer: Any, *_arguments: Any) -> None:
        """A step ends, where optimizers do not end it themselves."""
        if self._by_batch and self.session and trainer.global_step > self._optimizer_steps:
            self._optimizer_steps = trainer.global_step
            self.session.step()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's
        """Another phase begins."""
        if self.session is not None:
            name = "sanity" if trainer.sanity_checking else "eval"
            self._phase.enter_context(self.session.phase(name))

    def on_validation_batch_start(self, *_arguments: Any) -> None:
        """A pass of that phase begins."""
        self._batch()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's
        """Back to training."""
        self._phase.close()

    # -- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """The step that is open, for the checkpoint."""
        return {"step": self._step if self.session is None else self.session.current_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The step at which the checkpoint was made."""
        self._step = state_dict["step"]


class _Batch(nn.Module):
    """Watched, and called for each batch: the forward of a watched module begins a pass.

    Lightning calls `training_step`, in which the module's own forward need not be called.
    """

    def forward(self) -> None:
        """Nothing to compute."""
