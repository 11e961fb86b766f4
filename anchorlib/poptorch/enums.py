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
    """Which micro-batches' outputs a call returns."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    Default = 4  # All for inference, Final for training


AnchorMode = OutputMode  # its name until PopTorch 2.3


class ReductionType(Enum):
    """How the gradients of accumulated micro-batches are combined."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class MeanReductionStrategy(Enum):
    """When a sum of gradients is divided by their number; here always after the last gradient."""

    Running = 0
    Post = 1


class ConnectionType(Enum):
    """When a model attaches to a device; here without effect."""

    Always = 0
    OnDemand = 1
    Never = 2


class SyncPattern(Enum):
    """How devices wait for each other; here without effect."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class HalfFloatCastingBehavior(Enum):
    """The dtype of an operation on a half and a float; here torch's rules apply."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2


class DataLoaderMode(Enum):
    """How a DataLoader fetches batches; here its `num_workers` decides that."""

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(Enum):
    """How a DataLoader's workers hand batches over; here torch decides that."""

    SharedMemory = "shared_memory"
    FileSystem = "file_system"
    Fork = "fork"
    ForkServer = "forkserver"


class OverlapMode(IntEnum):
    """When inputs and outputs are copied to and from a device; here without effect."""

    NoOverlap = 0
    OverlapAccumulationLoop = 1
    OverlapDeviceIterationLoop = 2
