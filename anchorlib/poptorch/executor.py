# ruff: noqa: N802 - PopTorch's own names
"""`trainingModel` and `inferenceModel`: a torch model that is called as PopTorch calls one.

    call ─▶ micro-batches ─▶ forward, backward ─▶ mean gradient ─▶ update    (deviceIterations ×)
                                  └── outputs and anchors, as their modes select ──▶ the caller

It runs where the model's parameters are. Anchors are recorded by anchorlib's session.
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
from anchorlib.poptorch.anchors import LOSS, Anchor, Anchors, names_its_loss
from anchorlib.poptorch.batching import MicroBatch, Outputs, flattened, micro_batches
from anchorlib.poptorch.enums import OutputMode, ReductionType
from anchorlib.poptorch.errors import Error, MisuseError
from anchorlib.poptorch.modes import mode_for
from anchorlib.poptorch.ops import loss_of, marked_losses
from anchorlib.poptorch.options import Options
from anchorlib.poptorch.recording import Recording
from anchorlib.poptorch.tracing import Trace, Traced

__all__ = ["PoplarExecutor", "inferenceModel", "trainingModel"]

_log = logging.getLogger("anchorlib")


def trainingModel(
    model: nn.Module,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """`model`, to be trained by calling it.

    A call runs deviceIterations weight updates, each of the averaged gradients of
    gradientAccumulation micro-batches; the loss is the one that `identity_loss` marked, else the
    last scalar among the model's outputs that has a graph.
    optimizer: None for torch.optim.SGD with a learning rate of 0.01.

    Raises Error for options that cannot be, UnknownAnchorError for an anchor of no tensor.
    """
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return PoplarExecutor(model, options or Options(), optimizer)


def inferenceModel(model: nn.Module, options: Options | None = None) -> PoplarExecutor:
    """`model`, to be called without gradients on deviceIterations micro-batches at once.

    Raises Error for options that cannot be, UnknownAnchorError for an anchor of no tensor.
    """
    options = options or Options()
    if options.Training.gradient_accumulation != 1:
        raise MisuseError("gradientAccumulation is for training: leave it at 1 for inference")
    return PoplarExecutor(model, options, None)


class PoplarExecutor:
    """A model as PopTorch calls it; whatever is not found here is looked up on the model."""

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
        self._anchors = Anchors(wanted, model, optimizer, window, (mode, period))
        self._recording = Recording(model, self._anchors.known.values(), window)
        self._traced: Traced | None = None
        self._flags: dict[nn.Module, bool] = {}
        self._called = False

    # -- what it is

    @property
    def model(self) -> nn.Module:
        """The model itself."""
        return self._model

    @property
    def options(self) -> Options:
        """The options it was built from; they take further anchors, nothing else."""
        return self._options

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_model"], name)

    def isCompiled(self) -> bool:
        """Whether it was called or compiled, and not destroyed since."""
        return self._traced is not None

    def isAttachedToDevice(self) -> bool:
        """Always: there is nothing to attach to."""
        return True

    # -- running

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Learn the names of the model's tensors from one micro-batch of these arguments.

        It is run on a copy: weights, buffers and random numbers stay as they are.
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
        """Run the model on a call's worth of arguments, and train it if it is for training.

        Gives back what the output mode selects of the outputs, on the CPU.
        Raises MisuseError for arguments that cannot be cut into micro-batches, Error for a model
        that gives no loss.
        """
        batches = micro_batches(self._window, args, kwargs, self._device)
        first = next(batches)
        self._keep_flags()
        self._recording.add(self._anchors.look(self._optimizer))
        self._recording.begin(self._optimizer)
        if self._optimizer is not None:
            self._optimizer.zero_grad()  # of a call that was broken off, or of other code
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
        """One micro-batch forward, and backward where there is something to train."""
        args, kwargs = batch
        marked_losses()  # of a forward that was broken off
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
        """So many micro-batches are done: update the weights where that is due."""
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
        # PopTorch's model keeps the mode it was compiled in, whatever `eval` says later.
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
        """Train with `optimizer` from now on."""
        if self._optimizer is None:
            raise MisuseError("an inference model has no optimizer")
        self._optimizer = optimizer

    # -- looking

    def getTensorNames(self) -> list[str]:
        """The names that `anchorTensor` takes, in the order in which a micro-batch computes them.

        Raises MisuseError before the model was compiled or called.
        """
        if self._traced is None:
            raise MisuseError("Model must be compiled before calling getTensorNames")
        return list(self._traced.names)

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """What the last call recorded under an anchor; your own copy.

        The micro-batches that its mode selects stand one after the other along dimension 0, as in
        outputs; what is made once in a weight update has one entry an update.

        Raises MisuseError before the first call, for a name that is no anchor's and for an anchor
        that this model cannot have, UnknownAnchorError for one of no tensor that it has, Error
        where nothing was recorded.
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
        # Sums are taken in a wide dtype, but given back in the tensor's own, as PopTorch does.
        known = {} if self._traced is None else self._traced.dtypes
        return known.get(anchor.name, rows[0].dtype)

    # -- weights and hardware

    def copyWeightsToHost(self) -> None:
        """Nothing to do: the weights are the model's own. Raises Error before the first call."""
        self._must_be_compiled()

    def copyWeightsToDevice(self) -> None:
        """Nothing to do: the weights are the model's own. Raises Error before the first call."""
        self._must_be_compiled()

    def _must_be_compiled(self) -> None:
        if self._traced is None:
            raise Error("Model has not been compiled or has been destroyed.")

    def attachToDevice(self) -> None:
        """Nothing to do."""

    def detachFromDevice(self) -> None:
        """Nothing to do."""

    def destroy(self) -> None:
        """Forget what was compiled and recorded; a further call begins anew.

        The session in memory is closed when no model uses it any more: `anchorlib.start` may open
        another then.
        """
        self._recording.release()
        self._traced = None
        self._flags.clear()
        self._called = False
