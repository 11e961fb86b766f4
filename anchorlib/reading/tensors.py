"""Turns stored arrays into torch tensors; torch is imported when `as_tensor` is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["as_tensor"]


def as_tensor(raw: np.ndarray[Any, Any], dtype: str) -> torch.Tensor:
    """Return stored bits as a torch tensor, which shares memory with `raw` where that is possible.

    raw: an array in the dtype of the store (uint16 for bfloat16).
    dtype: torch's name of the dtype that was recorded, such as "bfloat16".
    """
    import torch

    wanted = getattr(torch, dtype)
    tensor = torch.from_numpy(np.require(raw, requirements=["C", "W"]))
    return tensor if tensor.dtype == wanted else tensor.view(wanted)
