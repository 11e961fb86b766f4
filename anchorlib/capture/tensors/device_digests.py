"""Digests of tensors on a device, computed there: no thread waits for them.

    digest = device_digest(parameter)      # a tensor of one int64, on the parameter's device
    changed(digests_then, digests_now)     # which of them differ; here the thread waits, once

So that a later pass can tell which parameters have changed, none has to be copied to the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

import torch

from anchorlib.capture.tensors.snapshot import plain, undisturbed

__all__ = ["changed", "device_digest"]

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # others: int64
_ROW: Final = 1 << 12
_CHUNK: Final = 1 << 22  # elements whose products, of 8 bytes each, take memory at a time
_CHUNKS_FACTOR: Final = 0x2545F4914F6CDD1D


def device_digest(x: torch.Tensor) -> torch.Tensor:
    """Return a digest of the bits of `x`: a tensor of one int64 on its device.

    Each element's bits, taken as an integer, are multiplied by a weight of their place, and the
    products are added up modulo 2⁶⁴. So one changed element always changes the digest, since the
    weights are odd, and so do two that are exchanged, but for chance. The sum has no order, so that
    equal bits always have equal digests.
    x: a plain strided tensor.
    """
    with undisturbed(), torch.inference_mode(False), torch.no_grad():
        flat = plain(x).contiguous().view(-1)
        flat = flat.view(_INTEGERS.get(flat.element_size(), torch.int64))
        total = torch.zeros((), dtype=torch.int64, device=flat.device)
        for part in flat.split(_CHUNK):
            total = total * _CHUNKS_FACTOR + _chunk_digest(part)
        return total


def changed(before: Sequence[torch.Tensor], now: Sequence[torch.Tensor]) -> list[bool]:
    """Return of each pair of digests whether it differs; the thread waits for their devices once.

    before, now: digests in the same order, of any devices.
    """
    with undisturbed(), torch.inference_mode(False), torch.no_grad():
        by_device: dict[torch.device, list[int]] = {}
        for n, one in enumerate(now):
            by_device.setdefault(one.device, []).append(n)
        differs = [True] * len(now)
        for device, places in by_device.items():
            old = torch.stack([before[n].to(device) for n in places])
            new = torch.stack([now[n] for n in places])
            for n, one in zip(places, (old != new).tolist(), strict=True):
                differs[n] = one
        return differs


def _chunk_digest(part: torch.Tensor) -> torch.Tensor:
    weights = _weights(part.device)
    rows = part.numel() // _ROW
    end = part[rows * _ROW :]
    digest = (end * weights[0, : end.numel()]).sum()
    if rows:
        sums = (part[: rows * _ROW].view(rows, _ROW) * weights[0]).sum(1)
        digest = digest + (sums * weights[1, :rows]).sum()
    return digest


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """Return two rows of odd numbers that look random, made on the device (2 × 4096).

    They are SplitMix64's of 1, 2, 3, … with the lowest bit set (Steele, Lea and Flood, "Fast
    splittable pseudorandom number generators", 2014).
    """
    z = torch.arange(1, 2 * _ROW + 1, dtype=torch.int64, device=device) * _signed(
        0x9E3779B97F4A7C15
    )
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return ((z ^ _shifted(z, 31)) | 1).view(2, _ROW)


def _signed(number: int) -> int:
    """Return the int64 of the same bits as an unsigned number."""
    return number - (1 << 64) if number >> 63 else number


def _shifted(z: torch.Tensor, bits: int) -> torch.Tensor:
    """Return `z` shifted right as an unsigned number."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
