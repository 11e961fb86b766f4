"""Digests that a device makes of its tensors, here the CPU: the operations are those of any."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.capture.tensors import changed, device_digest, device_digests
from anchorlib.dtypes import DTYPES as STORED

DTYPES = sorted({getattr(torch, name) for name in STORED if hasattr(torch, name)}, key=str)
SIZES = st.one_of(st.integers(2, 40), st.integers(4090, 4100), st.integers(8190, 8200))


def values(size: int) -> torch.Tensor:
    """Numbers that all differ."""
    return torch.arange(size, dtype=torch.int32) * 48_271 + 11


@given(SIZES, st.data())
def test_one_flipped_bit_always_changes_the_digest(size, data):
    x = values(size)
    before = int(device_digest(x))
    bit = data.draw(st.integers(0, 31))
    x[data.draw(st.integers(0, size - 1))] ^= -(2**31) if bit == 31 else 1 << bit
    assert int(device_digest(x)) != before


@given(SIZES, st.data())
def test_two_values_that_change_places_change_the_digest(size, data):
    x = values(size)
    one = data.draw(st.integers(0, size - 2))
    other = data.draw(st.integers(one + 1, size - 1))
    y = x.clone()
    y[one], y[other] = x[other], x[one]
    assert int(device_digest(x)) != int(device_digest(y))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_bits_of_any_dtype_have_equal_digests_in_whatever_layout_they_lie(dtype):
    raw = torch.arange(24 * dtype.itemsize) ** 2 // 3 % (2 if dtype is torch.bool else 251)
    x = raw.to(torch.uint8).view(dtype).view(4, 6)
    turned = torch.empty(6, 4, dtype=dtype).t().copy_(x)
    assert not turned.is_contiguous()
    assert int(device_digest(turned)) == int(device_digest(x))
    assert int(device_digest(x[:, :3])) != int(device_digest(x[:, 1:4]))


def test_chunks_that_change_places_change_the_digest(monkeypatch):
    monkeypatch.setattr(device_digests, "_CHUNK", 8192)
    x = values(3 * 8192 + 5)
    y = torch.cat([x[8192:16384], x[:8192], x[16384:]])
    assert int(device_digest(x)) == int(device_digest(x.clone()))
    assert int(device_digest(x)) != int(device_digest(y))


def test_the_pairs_that_differ_are_told_in_their_order():
    before = [device_digest(values(size)) for size in (3, 4, 5)]
    now = [device_digest(one) for one in (values(3), values(4) + 1, values(5))]
    assert changed(before, now) == [False, True, False]
    assert changed([], []) == []


def test_no_random_number_is_drawn_and_no_mode_of_the_user_sees_anything():
    state = torch.get_rng_state()
    with torch.inference_mode():
        digest = device_digest(torch.ones(3))
    assert torch.equal(torch.get_rng_state(), state)
    assert not digest.is_inference()
    assert not digest.requires_grad
