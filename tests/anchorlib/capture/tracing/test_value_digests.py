"""The digest of a tensor is that of its values in order, however its memory lies."""

from __future__ import annotations

import warnings

import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.capture.tracing import value_digests
from anchorlib.capture.tracing.gathering import Gathering
from anchorlib.capture.tracing.value_digests import Digester

VIEWS = (
    lambda x: x,
    lambda x: x.t(),
    lambda x: x[1:, ::2],
    lambda x: x[:, :1].expand(4, 6),
    lambda x: x.view(2, 2, 6).permute(2, 0, 1),
    lambda x: x[2],
    lambda x: x[:0].t(),
    lambda x: torch._neg_view(x.t()),
    lambda x: x.to(torch.complex64).t().conj(),
)


@pytest.mark.slow
@given(steps=st.lists(st.tuples(st.sampled_from(range(len(VIEWS))), st.booleans()), max_size=20))
def test_a_digest_is_that_of_the_values_now_whatever_was_seen_before(steps):
    x = torch.arange(24.0).view(4, 6)
    digester = Digester()
    for number, writes in steps:
        if writes:
            x.numpy()[number % 4, :] += 1  # nothing that torch dispatches
        view = VIEWS[number](x)
        told = view.resolve_conj().resolve_neg().contiguous()
        assert digester.digest(view) == xxhash.xxh3_128_digest(told.numpy().tobytes())


@pytest.mark.slow
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.bool, torch.int16, torch.bfloat16, torch.float32, torch.float64]),
    data=st.data(),
)
def test_values_are_read_in_their_order_whatever_the_strides(shape, dtype, data):
    stride = [data.draw(st.sampled_from([0, 1, 2, 3, n, n * 5, n * 25])) for n in shape]
    last = sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    x = torch.arange(last + 1).remainder(251).to(dtype).as_strided(shape, stride)
    told = torch.empty(shape, dtype=dtype).copy_(x).view(torch.uint8).numpy().tobytes()
    assert Digester().digest(x) == xxhash.xxh3_128_digest(told)


@pytest.mark.parametrize("inner", [2, 4, 8, 16])
@pytest.mark.parametrize("turn", [(1, 0, 2, 3), (2, 0, 1, 3), (0, 2, 1, 3), (2, 1, 0, 3)])
@pytest.mark.parametrize("first", [0, 1])
def test_heads_of_attention_are_read_in_their_order(inner, turn, first):
    # Their last dimension is copied as one element, from places that are listed where it is small.
    x = torch.randn(3, 5, 4, inner)[first:].permute(turn)
    told = xxhash.xxh3_128_digest(x.contiguous().numpy().tobytes())
    assert Digester().digest(x) == told
    every_other = x[..., : inner // 2]
    told = xxhash.xxh3_128_digest(every_other.contiguous().numpy().tobytes())
    assert Digester().digest(every_other) == told


@pytest.mark.parametrize("step", [4, 6])
def test_elements_that_do_not_lie_whole_elements_apart_are_read_in_their_order(step):
    x = torch.arange(64.0).as_strided((5, 4), (step, 1))  # 16 bytes each, 16 or 24 apart
    turned = x.as_strided((2, 2, 4), (2 * step, step, 1)).transpose(0, 1)
    told = xxhash.xxh3_128_digest(turned.contiguous().numpy().tobytes())
    assert Digester().digest(turned) == told


def test_the_same_transposed_values_are_put_in_order_once(monkeypatch):
    looked = []
    read = Gathering.read
    monkeypatch.setattr(Gathering, "read", lambda *told: looked.append(0) or read(*told))
    x = torch.arange(24.0).view(4, 6)
    digester = Digester()
    first = digester.digest(x.t())
    assert digester.digest(x.clone().t()) == first
    assert len(looked) == 1
    assert digester.digest(x.view(6, 4).t()) != first, "the same memory in another shape"
    digester.forget()
    assert digester.digest(x.t()) == first
    assert len(looked) == 3


def test_what_a_view_takes_and_makes_in_one_memory_is_read_once():
    x = torch.arange(24.0)
    digester, near = Digester(), {}
    first = digester.digest(x, near)
    assert digester.digest(x.view(4, 6), near) == first
    assert digester.digest(x[:6], near) != first
    assert len(near) == 2
    turned = x.view(4, 6).t()  # the same memory, whose values are read in another order
    told = xxhash.xxh3_128_digest(turned.contiguous().numpy().tobytes())
    assert digester.digest(turned, near) == told != first
    assert len(near) == 2


@pytest.mark.parametrize("number", [0, 1, 2, 5])
def test_a_lazy_clone_stays_one_while_it_is_digested(number):
    x, view = torch.arange(24.0).view(4, 6), VIEWS[number]
    clone = view(torch._lazy_clone(x))
    told = xxhash.xxh3_128_digest(view(x).contiguous().numpy().tobytes())
    assert Digester().digest(clone) == value_digests.digest_of(clone) == told
    assert torch._C._is_cow_tensor(clone)


def test_a_tensor_that_is_zero_by_definition_has_the_digest_of_zeros():
    zeros = torch._efficientzerotensor((3, 4))  # of forward-mode derivatives; it has no memory
    told = xxhash.xxh3_128_digest(bytes(48))
    assert Digester().digest(zeros) == value_digests.digest_of(zeros) == told


@pytest.mark.parametrize("layout", ["sparse", "sparse_csr", "mkldnn"])
def test_what_is_no_array_has_no_digest(layout):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that compressed layouts are in beta
        x = getattr(torch.eye(3), f"to_{layout}")()
    assert Digester().digest(x) is value_digests.digest_of(x) is None
