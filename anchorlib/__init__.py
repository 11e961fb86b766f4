"""See the tensors of a PyTorch training run: record them, read them back, compare two runs.

    import anchorlib

    with anchorlib.start("run1") as session:                  # records into ./anchors/run1.zarr
        session.watch(model, tensors=["fc2.bias@grad", "*@delta"], optimizer=optimizer)
        for x, y in loader:
            loss = loss_fn(model(x), y)                       # the model may call anchorlib.anchor
            anchorlib.anchor(loss, "loss")
            optimizer.zero_grad(); loss.backward(); optimizer.step()

    anchorlib.open_run("run1")["fc2.bias@grad"].values()      # (record, *shape)

    errors    the error tree                    wire      records as messages, and back
    dtypes    how each dtype is stored          store     the zarr hierarchy: writer, reader
    summary   digest, counts, log2 histogram    spool     records on disk until a collector has them
    names     selectors and what they match     sinks     where records go: a store, a collector
    record    the record that readers return    recorder  takes records from the training threads
    block     records as columns                formulas  ways to compute, each rounding explicit
    modes     All, Sum, Final, EveryN, Summary  reading   Run and Series, for users
    capture   sessions and anchors, in torch    diagnosis where two runs part
    scope     phases and steps to record        integrations  Lightning, Transformers, Accelerate
    poptorch  PopTorch's names for all of this  reruns    a command run again, to be compared
    peers     ranks that differ from the rest

Importing this package imports none of torch, zarr and grpc: each is imported with the first name
that needs it, so that the collector and the command line never load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from anchorlib.errors import (
    AmbiguousTensorError,
    AnchorError,
    ClusterError,
    CollectorError,
    CommandError,
    DamagedError,
    FlushTimeoutError,
    InvalidNameError,
    MissingExtraError,
    ModeError,
    NotATensorError,
    OptionError,
    QueueFullError,
    RaggedError,
    RunBusyError,
    RunExistsError,
    RunNotFoundError,
    SessionError,
    StoreError,
    UnknownDTypeError,
    UnknownTensorError,
    UnsupportedError,
    ValuesNotKeptError,
)
from anchorlib.modes import All, EveryN, Final, Sum, Summary

if TYPE_CHECKING:
    from anchorlib.capture import Session, anchor, graft, print_tensor, start, tensor_names
    from anchorlib.diagnosis import Comparison, compare, replay
    from anchorlib.noise_runs import noise
    from anchorlib.peers import outliers
    from anchorlib.reading import Run, Series, open_run
    from anchorlib.record import Coordinates, Record, TensorInfo
    from anchorlib.summary import Log2Histogram, log2_histogram

__version__ = "0.2.0.dev0"

__all__ = [
    "All",
    "AmbiguousTensorError",
    "AnchorError",
    "ClusterError",
    "CollectorError",
    "CommandError",
    "Comparison",
    "Coordinates",
    "DamagedError",
    "EveryN",
    "Final",
    "FlushTimeoutError",
    "InvalidNameError",
    "Log2Histogram",
    "MissingExtraError",
    "ModeError",
    "NotATensorError",
    "OptionError",
    "QueueFullError",
    "RaggedError",
    "Record",
    "Run",
    "RunBusyError",
    "RunExistsError",
    "RunNotFoundError",
    "Series",
    "Session",
    "SessionError",
    "StoreError",
    "Sum",
    "Summary",
    "TensorInfo",
    "UnknownDTypeError",
    "UnknownTensorError",
    "UnsupportedError",
    "ValuesNotKeptError",
    "__version__",
    "anchor",
    "compare",
    "graft",
    "log2_histogram",
    "noise",
    "open_run",
    "outliers",
    "print_tensor",
    "replay",
    "start",
    "tensor_names",
]

_LAZY = {
    **dict.fromkeys(
        ["Session", "anchor", "graft", "print_tensor", "start", "tensor_names"], "anchorlib.capture"
    ),
    **dict.fromkeys(["noise"], "anchorlib.noise_runs"),
    **dict.fromkeys(["Comparison", "compare", "replay"], "anchorlib.diagnosis"),
    **dict.fromkeys(["outliers"], "anchorlib.peers"),
    **dict.fromkeys(["Run", "Series", "open_run"], "anchorlib.reading"),
    **dict.fromkeys(["Coordinates", "Record", "TensorInfo"], "anchorlib.record"),
    **dict.fromkeys(["Log2Histogram", "log2_histogram"], "anchorlib.summary"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'anchorlib' has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value  # the next read of the name does not come through here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
