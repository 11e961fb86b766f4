"""PopTorch's enumerations, as far as programs that observe tensors use them."""

from __future__ import annotations

from enum import Enum, IntEnum

__all__ = [
    "AnchorMode",
    "ConnectionType",
    "DataLoaderMode",
    "HalfFloatCastingBehavior",
    "MeanReductionStrategy",
    "OutputMode",
    "OverlapMode",
    "ReductionType",
    "SharingStrategy",
    "SyncPattern",
]


class OutputMode(Enum):
    """Which micro-batches of a call are given back."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4  # All for inference, Final for training


AnchorMode = OutputMode  # its name until PopTorch 2.3


class ReductionType(Enum):
    """How the gradients of accumulated micro-batches are put together."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class MeanReductionStrategy(Enum):
    """When a mean is divided; all give the same here, but for rounding."""

    Running = 0
    Post = 1


class ConnectionType(Enum):
    """When to attach to a device."""

    Always = 0
    OnDemand = 1
    Never = 2


class SyncPattern(Enum):
    """How devices wait for each other."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class HalfFloatCastingBehavior(Enum):
    """What operations on a half and a float do."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2


class DataLoaderMode(Enum):
    """How a DataLoader fetches."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(Enum):
    """How a DataLoader's workers hand data over."""

    SharedMemory = "shared_memory"
    FileSystem = "file_system"
    Fork = "fork"
    ForkServer = "forkserver"


class OverlapMode(IntEnum):
    """When inputs and outputs are copied."""

    NoOverlap = 0
    OverlapAccumulationLoop = 1
    OverlapDeviceIterationLoop = 2
