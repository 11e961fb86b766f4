"""Splits a call's inputs into micro-batches, and joins the outputs of the micro-batches.

A call is given all its micro-batches at once, one after the other along dimension 0. It returns
the outputs of the micro-batches that the output mode selects, joined along dimension 0 as well:

    mode      size of dimension 0, where the output of one micro-batch has size T0
    All       (number of micro-batches) · T0
    EveryN    (number of micro-batches / n) · T0
    Final     T0: the output of the last micro-batch
    Sum       T0: the sum of the outputs of all micro-batches

A 0-d output, such as a loss, becomes 1-d where it is returned for more than one micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch

from anchorlib.capture import TorchArithmetic
from anchorlib.folds import Fold
from anchorlib.modes import Mode
from anchorlib.poptorch.errors import Error, MisuseError
from anchorlib.poptorch.modes import Window
from anchorlib.torch_private import TreeSpec, tree_flatten, tree_map, tree_unflatten

__all__ = ["MicroBatch", "Outputs", "flattened", "micro_batches"]

MicroBatch: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and keyword arguments of one forward."""


def micro_batches(
    window: Window, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> Iterator[MicroBatch]:
    """Yield (args, kwargs) of each micro-batch, in order, with tensors moved to `device`.

    Tensors are cut along dimension 0, also inside lists, tuples and dicts; any other argument, and
    a 0-d tensor if a call has one micro-batch, is passed on unchanged. Raises MisuseError for a
    tensor that cannot be cut into equal parts.

    window: says how many micro-batches a call has.
    args, kwargs: the arguments of the whole call.
    """
    count = window.batches
    leaves, _ = tree_flatten((args, kwargs))
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            _check_size(leaf, window)
    for index in range(count):
        yield tree_map(lambda leaf, at=index: _part(leaf, at, count, device), (args, kwargs))


def _check_size(tensor: torch.Tensor, window: Window) -> None:
    size = tensor.shape[0] if tensor.dim() else 1
    if size % window.batches:
        raise MisuseError(
            f"an input of shape {list(tensor.shape)} has {size} elements along dimension 0, which "
            f"is no multiple of deviceIterations × gradientAccumulation = {window.batches}"
        )


def _part(leaf: Any, index: int, count: int, device: torch.device) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    leaf = leaf.detach()
    if leaf.dim():
        size = leaf.shape[0] // count
        leaf = leaf[index * size : (index + 1) * size]
    return leaf.to(device)


class Outputs:
    """Collects the outputs of one call's micro-batches, and keeps those that `mode` selects."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._arithmetic = TorchArithmetic()
        self._streams: list[_Stream] = []
        self._spec: TreeSpec | None = None
        self._others: list[Any] = []

    def take(self, output: Any) -> None:
        """Add the output of the next micro-batch.

        Raises Error if its structure (of lists, tuples and dicts) differs from the first output's.
        """
        leaves, spec = tree_flatten(output)
        if self._spec is None:
            self._spec = spec
            self._streams = [_Stream(self._mode, self._arithmetic) for _ in leaves]
        elif spec != self._spec:
            raise Error(
                "the model's outputs differ in structure from micro-batch to micro-batch: return "
                "the same lists, tuples and dicts each time"
            )
        self._others = leaves
        for stream, leaf in zip(self._streams, leaves, strict=True):
            if isinstance(leaf, torch.Tensor):
                stream.take(leaf.detach())

    def result(self) -> Any:
        """Return the outputs of the whole call, on the CPU.

        They have the structure (of lists, tuples and dicts) of one micro-batch's output. A part
        that is no tensor is returned as it was in the last micro-batch. Raises Error for outputs of
        different shapes that were to be summed.
        """
        assert self._spec is not None
        leaves = [
            stream.result() if isinstance(leaf, torch.Tensor) else leaf
            for stream, leaf in zip(self._streams, self._others, strict=True)
        ]
        return tree_unflatten(leaves, self._spec)


class _Stream:
    """Collects one tensor of the outputs over the micro-batches of a call."""

    def __init__(self, mode: Mode, arithmetic: TorchArithmetic) -> None:
        self._fold = Fold(mode, arithmetic)
        self._arithmetic = arithmetic
        self._rows: list[torch.Tensor] = []
        self._dtype = torch.float32

    def take(self, x: torch.Tensor) -> None:
        self._dtype = x.dtype
        if not self._fold.wants(0):
            return
        if self._fold.holds:
            self._fold.hold(0, None, x)
        else:
            self._rows.append(self._arithmetic.copy(x).tensor)

    def result(self) -> torch.Tensor:
        held = self._fold.close()
        if held is None:
            return flattened(self._rows, self._dtype)
        if held.refused is not None:
            first, other = held.refused
            raise Error(f"outputs of shapes {list(first)} and {list(other)} cannot be summed")
        return flattened([held.kept.tensor.cpu()], self._dtype)


def flattened(rows: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Return `rows` joined along dimension 0 as one tensor of `dtype`.

    Several 0-d rows give a 1-d tensor; a single 0-d row stays 0-d.

    rows: one tensor for each micro-batch; at least one.
    """
    if len(rows) == 1:
        return rows[0].to(dtype)
    return torch.cat([row.reshape(1) if row.dim() == 0 else row for row in rows]).to(dtype)
