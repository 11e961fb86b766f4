"""Stored bits turned back into torch tensors; torch is imported only when that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["as_tensor"]


def as_tensor(raw: np.ndarray[Any, Any], dtype: str) -> torch.Tensor:
    """Raw storage as a tensor of the dtype that was recorded, sharing its memory."""
    import torch

    wanted = getattr(torch, dtype)
    tensor = torch.from_numpy(np.require(raw, requirements=["C", "W"]))
    return tensor if tensor.dtype == wanted else tensor.view(wanted)
