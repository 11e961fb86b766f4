"""Transformers: `Trainer(..., callbacks=[AnchorCallback("run1", tensors=["*@grad"])])`.

step        an optimizer step: the trainer's `global_step`
pass_index  a batch that is accumulated into the step
phase       "train"; "eval" in evaluation during training
attempt     one more for each `resume_from_checkpoint`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anchorlib.capture import Session
from anchorlib.errors import MissingExtraError
from anchorlib.integrations.training import ObservedTraining

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as fault:
    raise MissingExtraError(
        f"anchorlib.integrations.transformers needs transformers, and there is {fault}: "
        "pip install 'anchorlib[transformers]'"
    ) from None

__all__ = ["AnchorCallback"]


class AnchorCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not type-checked with us
    """Records what `Trainer.train` does to its model, with its optimizer.

    run, options: the run's name, and keyword arguments, for `anchorlib.start`; the rank is the
        trainer's unless it is given. A training from a checkpoint goes on in the same run, as the
        run's next attempt.
    tensors, prefix: as for `Session.watch`; tensors that the model itself anchors are recorded too.

    The run is closed when training ends. The trainer does not report exceptions to callbacks: after
    an exception the run is closed when the process ends, when this callback's next training begins,
    or by `callback.session.close()`. An unknown option raises TypeError here; errors of `start` and
    `watch` are raised when training begins.
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

    @property
    def session(self) -> Session | None:
        """The session while training is under way; None outside training."""
        return self._training.session

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:  # noqa: ARG002  # the trainer's
        """Open the session and watch the trainer's model and optimizer."""
        self._training.begin(
            parts["model"],
            parts["optimizer"],
            rank=args.process_index,
            first_step=state.global_step,
        )

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:  # noqa: ARG002  # the trainer's
        """Close the run."""
        self._training.end()
