"""`DataLoader`: torch's DataLoader, with batches of the samples that one call of a model takes."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch.utils.data import IterableDataset

from anchorlib.poptorch.enums import DataLoaderMode
from anchorlib.poptorch.errors import MisuseError
from anchorlib.poptorch.options import Options

__all__ = ["DataLoader"]

_log = logging.getLogger("anchorlib")


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Loads batches of batch_size × deviceIterations × gradientAccumulation samples.

    options: the model's Options, which say how many micro-batches a call takes.
    batch_size: how many samples a micro-batch has; None if each item is the input of a whole call.
    drop_last: whether a last, smaller batch is left out, which a model would refuse.

    mode, async_options, rebatched_worker_size: accepted without effect; here `num_workers` decides
        whether batches are loaded ahead.

    Raises MisuseError for a data set with fewer samples than a call takes, and, unless drop_last,
    for one whose samples do not fill a whole number of calls. The samples of an iterable data set
    are not counted.
    """

    def __init__(  # noqa: PLR0913  # PopTorch's arguments
        self,
        options: Options,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,  # noqa: FBT001, FBT002
        num_workers: int = 0,
        drop_last: bool = True,  # noqa: FBT001, FBT002
        persistent_workers: bool | None = None,  # noqa: FBT001
        auto_distributed_partitioning: bool = True,  # noqa: ARG002, FBT001, FBT002
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: dict[str, Any] | None = None,  # noqa: ARG002
        rebatched_worker_size: int | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> None:
        if not isinstance(options, Options):
            raise MisuseError(
                f"DataLoader takes poptorch.Options first, not {type(options).__name__}"
            )
        if mode is not DataLoaderMode.Sync:
            _log.debug("anchorlib: DataLoader(mode=%s) loads in its workers here", mode)
        self.options = options
        self.combinedBatchSize: int | None = None  # PopTorch's name
        if batch_size is not None:
            batches = options.device_iterations * options.Training.gradient_accumulation
            self.combinedBatchSize = batch_size * batches
        if self.combinedBatchSize is not None and not isinstance(dataset, IterableDataset):
            _check_divides(len(dataset), self.combinedBatchSize, drop_last=drop_last)
        super().__init__(
            dataset,
            batch_size=self.combinedBatchSize,
            shuffle=None if isinstance(dataset, IterableDataset) else shuffle,
            num_workers=num_workers,
            drop_last=drop_last and batch_size is not None,
            persistent_workers=num_workers > 0
            if persistent_workers is None
            else persistent_workers,
            **kwargs,
        )


def _check_divides(samples: int, combined: int, *, drop_last: bool) -> None:
    if samples % combined and not drop_last:
        raise MisuseError(
            f"{samples} samples are no multiple of the {combined} that one call takes; use "
            "drop_last=True"
        )
    if samples < combined:
        raise MisuseError(f"{samples} samples are fewer than the {combined} that one call takes")
