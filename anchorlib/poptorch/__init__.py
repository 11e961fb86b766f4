"""Runs programs written for PopTorch on torch: `import anchorlib.poptorch as poptorch`.

    opts = poptorch.Options()
    opts.anchorTensor("grad_bias", "Gradient___fc2.bias")
    model = poptorch.trainingModel(net, opts, poptorch.optim.SGD(net.parameters(), lr=0.01))
    output, loss = model(data, labels)
    model.getAnchoredTensor("grad_bias")

options    Options                             batching      micro-batches in, outputs out
groups     the parts of Options                anchors       which tensor an anchor means
executor   trainingModel, inferenceModel       recording     the session that records anchors
modes      output modes as anchorlib's         tensor_names  names in the order of execution
data       DataLoader                          ops           ipu_print_tensor, identity_loss, …
optim      optimizers                          enums         OutputMode, …
errors     Error, …

An anchor is a tensor of the model that the program asks for by name: `anchorTensor` asks for it,
`getAnchoredTensor` returns what the last call recorded of it. Anchors are recorded by anchorlib's
session: into the run that `anchorlib.start` (or ANCHOR_RUN) has opened, else into memory.

Differences from PopTorch: an anchor's own mode takes effect; `EveryN` counts micro-batches; sums
are taken in a wide dtype; a tensor that is made once in a weight update (`Accum___`,
`UpdatedVar___`, `Accl___`, a weight) is returned once per update, where PopTorch repeats it for
each micro-batch; replicas are not run.
"""

from __future__ import annotations

from anchorlib.poptorch import optim
from anchorlib.poptorch.data import DataLoader
from anchorlib.poptorch.enums import (
    AnchorMode,
    ConnectionType,
    DataLoaderMode,
    HalfFloatCastingBehavior,
    MeanReductionStrategy,
    OutputMode,
    OverlapMode,
    ReductionType,
    SharingStrategy,
    SyncPattern,
)
from anchorlib.poptorch.errors import Error
from anchorlib.poptorch.executor import PoplarExecutor, inferenceModel, trainingModel
from anchorlib.poptorch.ops import (
    BeginBlock,
    Block,
    NameScope,
    identity_loss,
    ipu_print_tensor,
    ipuHardwareIsAvailable,
    isRunningOnIpu,
    nop,
    recomputationCheckpoint,
    set_available_memory,
)
from anchorlib.poptorch.options import Options

__all__ = [
    "AnchorMode",
    "BeginBlock",
    "Block",
    "ConnectionType",
    "DataLoader",
    "DataLoaderMode",
    "Error",
    "HalfFloatCastingBehavior",
    "MeanReductionStrategy",
    "NameScope",
    "Options",
    "OutputMode",
    "OverlapMode",
    "PoplarExecutor",
    "ReductionType",
    "SharingStrategy",
    "SyncPattern",
    "identity_loss",
    "inferenceModel",
    "ipuHardwareIsAvailable",
    "ipu_print_tensor",
    "isRunningOnIpu",
    "nop",
    "optim",
    "recomputationCheckpoint",
    "set_available_memory",
    "trainingModel",
]
