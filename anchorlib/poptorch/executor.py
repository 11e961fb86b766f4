# ruff: noqa: N802 - PopTorch's own names
"""`trainingModel` and `inferenceModel`: wrap a torch model so that it is called as in PopTorch.

    call ─▶ micro-batches ─▶ forward, backward ─▶ mean gradient ─▶ update    (deviceIterations ×)
                                  └── outputs and anchors, as their modes select ──▶ the caller

The model runs on the device of its parameters. Anchors are recorded by anchorlib's session.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from anchorlib.capture import paused
from anchorlib.names import quoted
from anchorlib.poptorch.anchors import LOSS, Anchor, ModelAnchors, names_its_loss
from anchorlib.poptorch.batching import MicroBatch, Outputs, flattened, micro_batches
from anchorlib.poptorch.enums import OutputMode, ReductionType
from anchorlib.poptorch.errors import Error, MisuseError
from anchorlib.poptorch.modes import mode_for
from anchorlib.poptorch.ops import loss_of, marked_losses
from anchorlib.poptorch.options import Options
from anchorlib.poptorch.recording import Recording
from anchorlib.poptorch.tensor_names import Trace, Traced

__all__ = ["PoplarExecutor", "inferenceModel", "trainingModel"]

_log = logging.getLogger("anchorlib")


def trainingModel(
    model: nn.Module,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """Return `model`, wrapped so that calling it trains it.

    A call runs deviceIterations weight updates. Each update takes the mean (under
    ReductionType.Sum, the sum) of the gradients of gradientAccumulation micro-batches. The loss is
    the tensor that `identity_loss` marked, else the last scalar among the model's outputs that
    requires a gradient.

    optimizer: None for torch.optim.SGD with a learning rate of 0.01.

    Raises UnknownAnchorError for an anchor that names no tensor, MisuseError for an anchor that
    names several tensors and for a return period that does not fit into a call.
    """
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return PoplarExecutor(model, options or Options(), optimizer)


def inferenceModel(model: nn.Module, options: Options | None = None) -> PoplarExecutor:
    """Return `model`, wrapped so that calling it runs it without gradients.

    A call runs the model on deviceIterations micro-batches.

    Raises UnknownAnchorError for an anchor that names no tensor, MisuseError for an anchor that
    names several tensors, for a return period that does not fit into a call, and for a
    gradientAccumulation other than 1.
    """
    options = options or Options()
    if options.Training.gradient_accumulation != 1:
        raise MisuseError("gradientAccumulation is for training: leave it at 1 for inference")
    return PoplarExecutor(model, options, None)


class PoplarExecutor:
    """A torch model, wrapped so that it is called as in PopTorch.

    Attributes that this class lacks are looked up on the torch model.
    """

    def __init__(
        self, model: nn.Module, options: Options, optimizer: torch.optim.Optimizer | None
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._options = options.for_model()
        training = optimizer is not None
        window = self._options.window(training=training)
        mode, period = self._options.output_mode, self._options.output_return_period
        if mode is OutputMode.Default:
            mode = OutputMode.Final if training else OutputMode.All
        self._window = window
        self._output_mode = mode_for(mode, period, window, what="outputMode")
        wanted = self._options.anchored_tensors
        self._anchors = ModelAnchors(wanted, model, optimizer, window, (mode, period))
        self._recording = Recording(model, self._anchors.known.values(), window)
        self._traced: Traced | None = None
        self._flags: dict[nn.Module, bool] = {}
        self._called = False

    # -- the model and its state

    @property
    def model(self) -> nn.Module:
        """The torch model that was wrapped."""
        return self._model

    @property
    def options(self) -> Options:
        """This model's copy of its options; it accepts further anchors but no other change."""
        return self._options

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_model"], name)

    def isCompiled(self) -> bool:
        """Return whether the model was called or compiled, and `destroy` was not called since."""
        return self._traced is not None

    def isAttachedToDevice(self) -> bool:
        """Return True: here no device has to be attached."""
        return True

    # -- running

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Learn the names of the model's tensors by running the first micro-batch of a call.

        The micro-batch runs on a copy of the model: weights, buffers and the state of the random
        number generators stay unchanged. Where the model is compiled already, only a warning is
        logged.

        Raises what a call of the model raises.

        args, kwargs: the arguments of a whole call.
        """
        if self._traced is not None:
            _log.warning("anchorlib: compile() is ignored: the model is compiled already")
            return
        batches = list(micro_batches(self._window, args, kwargs, self._device))
        self._keep_flags()
        devices = sorted({p.device.index for p in self._model.parameters() if p.is_cuda})
        with torch.random.fork_rng(devices=devices), paused():
            model = copy.deepcopy(self._model)
            with Trace(model) as trace:
                self._forward(model, batches[0], trace)
            self._traced = trace.traced(self._optimizer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on the micro-batches of one call; a training model is trained on them.

        Returns the outputs that the output mode selects, on the CPU.
        Raises MisuseError for arguments that cannot be cut into micro-batches, Error for a training
        model without a loss.
        """
        batches = micro_batches(self._window, args, kwargs, self._device)
        first = next(batches)
        self._keep_flags()
        self._recording.add(self._anchors.look(self._optimizer))
        self._recording.begin(self._optimizer)
        if self._optimizer is not None:
            # A call that an exception ended, or other code, may have left gradients.
            self._optimizer.zero_grad()
        outputs = Outputs(self._output_mode)
        with self._as_compiled():
            trace = Trace(self._model) if self._traced is None else None
            self._micro_batch(first, outputs, trace)
            for number, batch in enumerate(batches, 1):
                self._end_update(number)
                self._micro_batch(batch, outputs, None)
        self._end_update(self._window.batches)
        if self._optimizer is None:
            self._recording.end_step()
        self._recording.finish()
        self._called = True
        return outputs.result()

    def _micro_batch(self, batch: MicroBatch, outputs: Outputs, trace: Trace | None) -> None:
        if trace is None:
            outputs.take(self._forward(self._model, batch, None))
            return
        with trace:
            outputs.take(self._forward(self._model, batch, trace))
        self._traced = trace.traced(self._optimizer)

    def _forward(self, model: nn.Module, batch: MicroBatch, trace: Trace | None) -> Any:
        """Run one micro-batch forward, and backward if this executor trains; return the output.

        model: the wrapped model, or a copy of it.
        trace: notes the names of the tensors that are computed; None: no names are noted.
        """
        args, kwargs = batch
        marked_losses()  # drop the losses that an interrupted forward has marked
        if self._optimizer is None:
            with torch.no_grad():
                return model(*args, **kwargs)
        with torch.enable_grad():
            output = model(*args, **kwargs)
            loss = loss_of(output)
            if trace is not None and not names_its_loss(model):
                trace.see(LOSS, loss)
            if model is self._model:
                self._recording.see_loss(loss)
            loss.backward()
        return output

    def _end_update(self, batches: int) -> None:
        """Update the weights and end the session's step, if the last micro-batch fills an update.

        Does nothing otherwise, or for an inference model.

        batches: how many micro-batches of the call were run so far.
        """
        optimizer, passes = self._optimizer, self._window.passes
        if optimizer is None or batches % passes:
            return
        held = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in held if p.grad is not None]
        if passes > 1 and self._options.Training.reduction is ReductionType.Mean:
            for gradient in gradients:
                gradient.div_(passes)
        norm = getattr(optimizer, "max_grad_norm", math.inf)
        if norm < math.inf:
            nn.utils.clip_grad_norm_(held, norm)
        optimizer.step()
        optimizer.zero_grad()
        self._recording.end_step()

    @property
    def _device(self) -> torch.device:
        first = next(self._model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def _keep_flags(self) -> None:
        # A PopTorch model stays in the mode in which it was compiled; a later `eval` has no effect.
        if not self._flags:
            self._flags = {module: module.training for module in self._model.modules()}

    @contextmanager
    def _as_compiled(self) -> Iterator[None]:
        before = {module: module.training for module in self._model.modules()}
        for module in before:
            module.training = self._flags.get(module, module.training)
        try:
            yield
        finally:
            for module, training in before.items():
                module.training = training

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Train with `optimizer` from now on. Raises MisuseError for an inference model."""
        if self._optimizer is None:
            raise MisuseError("an inference model has no optimizer")
        self._optimizer = optimizer

    # -- anchors

    def getTensorNames(self) -> list[str]:
        """Return the names of tensors that `anchorTensor` accepts, in the order of execution.

        Raises MisuseError before the model was compiled or called.
        """
        if self._traced is None:
            raise MisuseError("Model must be compiled before calling getTensorNames")
        return list(self._traced.names)

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """Return a copy of the tensor that the last call recorded under an anchor.

        The micro-batches that the anchor's mode selects stand one after the other along dimension
        0, as in outputs; a tensor that is made once in a weight update has one entry per update.

        Raises MisuseError before the first call, for a name without an anchor and for an anchor
        that this model cannot have, UnknownAnchorError for an anchor that names no tensor of the
        model, Error where nothing was recorded.
        """
        if not self._called:
            raise MisuseError(f"No tensor with name {quoted(short_name)} found; call the model")
        anchor = self._anchors.get(short_name)
        rows = self._recording.rows(anchor)
        if not rows:
            why = "no gradient reached it" if "grad" in anchor.kind else "it was not computed"
            if self._recording.left_out:
                why = "the session was started with other phases= or steps="
            raise Error(f"nothing was recorded of {anchor.selector} in the last call: {why}")
        return flattened(rows, self._dtype_of(anchor, rows))

    def _dtype_of(self, anchor: Anchor, rows: Sequence[torch.Tensor]) -> torch.dtype:
        # Sums are taken in a wide dtype, but returned in the tensor's own, as PopTorch does.
        known = {} if self._traced is None else self._traced.dtypes
        return known.get(anchor.name, rows[0].dtype)

    # -- weights and hardware

    def copyWeightsToHost(self) -> None:
        """Do nothing: calls train the torch model's own weights, which are therefore up to date.

        Raises Error before the model was compiled or called.
        """
        self._must_be_compiled()

    def copyWeightsToDevice(self) -> None:
        """Do nothing: calls run with the torch model's own weights, whoever has changed them.

        Raises Error before the model was compiled or called.
        """
        self._must_be_compiled()

    def _must_be_compiled(self) -> None:
        if self._traced is None:
            raise Error("Model has not been compiled or has been destroyed.")

    def attachToDevice(self) -> None:
        """Do nothing: here no device has to be attached."""

    def detachFromDevice(self) -> None:
        """Do nothing: here no device has to be attached."""

    def destroy(self) -> None:
        """Forget the tensor names and records of earlier calls; a later call compiles anew.

        A session in memory (opened by a model's call because the program had started none) is
        closed when no model uses it any more; then `anchorlib.start` may open another session.
        """
        self._recording.release()
        self._traced = None
        self._flags.clear()
        self._called = False
