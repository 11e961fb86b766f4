# ruff: noqa: N802 - PopTorch's own names
"""Functions that models written for PopTorch call: printing, losses, annotations for hardware."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

import torch

from anchorlib.capture import print_tensor
from anchorlib.errors import NotATensorError
from anchorlib.poptorch.errors import Error, MisuseError
from anchorlib.torch_private import tree_leaves

__all__ = [
    "BeginBlock",
    "Block",
    "NameScope",
    "identity_loss",
    "ipuHardwareIsAvailable",
    "ipu_print_tensor",
    "isRunningOnIpu",
    "loss_of",
    "marked_losses",
    "nop",
    "recomputationCheckpoint",
    "set_available_memory",
]

_REDUCTIONS = {"sum": 0, "mean": 1, "none": 2}


def ipu_print_tensor(  # noqa: PLR0913  # PopTorch's arguments
    tensor: torch.Tensor,
    title: str = "",
    print_gradient: bool = True,  # noqa: FBT001, FBT002
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> torch.Tensor:
    """Print `tensor` as `anchorlib.print_tensor` does, and return it; the result may be ignored.

    Raises Error for an object that is no tensor, and OptionError for an impossible format.
    """
    try:
        return print_tensor(
            tensor,
            title,
            print_gradient,
            summarise_threshold,
            edge_items,
            max_line_width,
            digits,
            float_format,
            separator,
            open_bracket,
            close_bracket,
        )
    except NotATensorError as fault:
        raise Error(str(fault)) from None


class _Marked(threading.local):
    """The losses that `identity_loss` has marked in this thread."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []


_marked = _Marked()


def identity_loss(x: torch.Tensor, reduction: str | int) -> torch.Tensor:
    """Reduce `x` by "sum" (0), "mean" (1) or "none" (2), and mark the result as the model's loss.

    Returns the result. Raises MisuseError for another reduction.
    """
    number = _REDUCTIONS.get(reduction, -1) if isinstance(reduction, str) else reduction
    if number not in _REDUCTIONS.values():
        raise MisuseError(f"a reduction is 'sum', 'mean' or 'none', not {reduction!r}")
    loss = x.sum() if number == 0 else x.mean() if number == 1 else x
    _marked.losses.append(loss)
    return loss


def loss_of(output: Any) -> torch.Tensor:
    """Return the tensor to call backward on: the loss marked last, else the output's last scalar.

    Of the output, only scalars that require a gradient count. All marked losses are forgotten.
    Raises Error where there is neither a marked loss nor such a scalar, and where the marked loss
    is no scalar.

    output: what the model returned, which may be lists, tuples and dicts of tensors.
    """
    marked = marked_losses()
    scalars = [
        leaf
        for leaf in tree_leaves(output)
        if isinstance(leaf, torch.Tensor) and leaf.numel() == 1 and leaf.requires_grad
    ]
    losses = marked or scalars
    if not losses:
        raise Error(
            "a training model has to return its loss, a scalar that was computed from its "
            "parameters, or to mark it with poptorch.identity_loss"
        )
    if losses[-1].numel() != 1:
        raise Error(f"the loss has shape {list(losses[-1].shape)}: reduce it to a scalar")
    return losses[-1]


def marked_losses() -> list[torch.Tensor]:
    """Return the losses that `identity_loss` has marked in this thread, and forget them."""
    losses, _marked.losses = _marked.losses, []
    return losses


def isRunningOnIpu() -> bool:
    """Return False: nothing runs on an IPU here."""
    return False


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:  # noqa: ARG001
    """Return False: anchorlib uses no IPU."""
    return False


class Block:
    """A context that does nothing; in PopTorch it places a part of a model on a device."""

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None) -> None:
        self.user_id = user_id
        self.ipu_id = ipu_id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


class NameScope(Block):
    """A context that does nothing; in PopTorch it gives the names of operations a prefix."""


def BeginBlock(
    layer_to_call: torch.nn.Module,
    user_id: str | None = None,  # noqa: ARG001
    ipu_id: int | None = None,  # noqa: ARG001
) -> torch.nn.Module:
    """Return `layer_to_call` unchanged; in PopTorch it would begin a block on a device."""
    return layer_to_call


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:  # noqa: ARG001
    """Return `tensor` unchanged; in PopTorch the memory of its operation would be limited."""
    return tensor


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Return the tensors unchanged: a single tensor itself, several as a tuple.

    In PopTorch they would be kept for backward, and not computed again.
    """
    return tensors[0] if len(tensors) == 1 else tensors


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` unchanged, as PopTorch does."""
    return tensor
