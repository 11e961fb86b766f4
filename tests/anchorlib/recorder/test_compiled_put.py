"""The compiled put: which tensors it takes, and the bytes that it writes for them."""

from __future__ import annotations

import math
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from anchorlib.capture.recording import putter as putter_module
from anchorlib.capture.recording.putter import layout_key
from anchorlib.capture.tensors.snapshot import dtype_name
from anchorlib.dtypes import DTYPES
from anchorlib.recorder.layout import SlotKind
from tests.anchorlib.recorder.rings import WRITES_RINGS, Ring
from tests.seeds import examples
from tests.strategies import storage_arrays

needs_it = pytest.mark.skipif(not WRITES_RINGS, reason="the compiled put was not built")

DTYPES_OF_TORCH = {one for one in vars(torch).values() if isinstance(one, torch.dtype)}
STORED = sorted((one for one in DTYPES_OF_TORCH if dtype_name(one) in DTYPES), key=dtype_name)
TAKEN = [dtype for dtype in STORED if not dtype.is_complex]


def tensor_of(raw, dtype):
    """A tensor of these bytes."""
    memory = torch.frombuffer(bytearray(raw.tobytes() or b"\0"), dtype=torch.uint8)
    return memory[: raw.nbytes].clone().view(dtype).reshape(raw.shape)


def bits_of(x):
    """The bytes of the values of `x`, by other means."""
    return bytes(x.detach().contiguous().flatten().view(torch.uint8).numpy())


# -- what is written


@needs_it
@pytest.mark.parametrize("dtype", TAKEN, ids=dtype_name)
@settings(max_examples=examples(25))  # of each dtype
@given(data=st.data())
def test_a_record_is_the_values_of_its_tensor_and_what_it_was_called_with(dtype, data):
    raw = data.draw(storage_arrays(dtype_name(dtype)))
    narrow, wide = st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1)
    told = {
        "stream": data.draw(narrow),
        "layout": data.draw(narrow),
        "step": data.draw(wide),
        "pass_index": data.draw(narrow),
        "call": data.draw(narrow),
        "order": data.draw(wide),
    }
    ring = Ring()
    before = time.time_ns()
    assert ring.put(tensor_of(raw, dtype), **told) == raw.nbytes
    [(slot, values)] = ring.consume()
    assert values == raw.tobytes()
    assert {name: slot[name] for name in told} == told
    assert (slot["scale"], slot["count"], slot["flags"]) == (1.0, 1, SlotKind.VALUES)
    assert (slot["pos"], slot["nbytes"], slot["seq"]) == (0, raw.nbytes, 1)
    assert before <= slot["time_ns"] <= time.time_ns()


@needs_it
@pytest.mark.parametrize("dtype", STORED, ids=dtype_name)
@pytest.mark.parametrize(
    "shape", [(), (0,), (1,), (5,), (3, 0, 2), (3, 5), (2, 3, 4), (2, 3, 4, 5)]
)
def test_every_dtype_and_shape_is_taken_but_complex_ones(dtype, shape):
    bits = torch.arange(math.prod(shape) * dtype.itemsize).mul(37).to(torch.uint8)
    x = (bits % 2 if dtype is torch.bool else bits).view(dtype).reshape(shape)
    ring = Ring()
    if dtype.is_complex:
        assert layout_key(dtype, shape) is None
        assert ring.put(x, layout_key=layout_key(torch.float32, shape)) is None
        return
    assert ring.put(x) == x.nbytes
    [(_, values)] = ring.consume()
    assert values == bits_of(x)


def parameter():
    return torch.nn.Parameter(torch.rand(3, 4))


def inferred():
    with torch.inference_mode():
        return torch.rand(3, 4) * 2


def odd_strides():
    return torch.rand(12).as_strided((1, 3, 1, 4), (7, 4, 0, 1))


ORDINARY = {
    "a leaf": lambda: torch.rand(3, 4, requires_grad=True),
    "of a graph": lambda: torch.rand(3, 4, requires_grad=True) * 2,
    "a parameter": parameter,
    "a buffer": lambda: torch.nn.Buffer(torch.rand(3, 4)),
    "of inference mode": inferred,
    "in shared memory": lambda: torch.rand(3, 4).share_memory_(),
    "a part of another": lambda: torch.rand(5, 4)[1:3],
    "sizes of one with odd strides": odd_strides,
    "no values, odd strides": lambda: torch.rand(4, 4).t()[:, :0],
    "numpy's memory": lambda: torch.from_numpy(np.ones((3, 4))),
    "copied when written": lambda: torch._lazy_clone(torch.rand(3, 4)),
    "channels last, of one channel": lambda: torch.rand(2, 1, 3, 3).to(
        memory_format=torch.channels_last
    ),
}


@needs_it
@pytest.mark.parametrize("what", ORDINARY)
def test_ordinary_arrays_are_taken_wherever_they_come_from(what):
    x = ORDINARY[what]()
    ring = Ring()
    assert ring.put(x) == x.nbytes
    [(_, values)] = ring.consume()
    assert values == bits_of(x)


# -- what is left to the way in Python


class Subclass(torch.Tensor):
    """A tensor that only looks ordinary."""


def emptied(offset=0):
    x = torch.ones(4, 4)[offset:]
    x.untyped_storage().resize_(0)
    return x


def fake():
    with torch._subclasses.FakeTensorMode():
        return torch.ones(3)


STRANGE = {
    "negated": lambda: torch._neg_view(torch.ones(3, 4)),
    "imaginary part of a conjugate": lambda: torch.ones(1, dtype=torch.complex64).conj().imag,
    "conjugated": lambda: torch.full((3,), 1j).conj(),
    "zeros without memory": lambda: torch._efficientzerotensor((2, 3)),
    "transposed": lambda: torch.rand(3, 4).t(),
    "expanded": lambda: torch.rand(1).expand(5),
    "every other": lambda: torch.rand(8)[::2],
    "sparse": lambda: torch.eye(3).to_sparse(),
    "in compressed rows": lambda: torch.eye(3).to_sparse_csr(),
    "of mkldnn": lambda: torch.eye(3).to_mkldnn(),
    "meta": lambda: torch.empty(3, device="meta"),
    "meta without values": lambda: torch.empty(0, device="meta"),
    "fake": fake,
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.as_nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
    "functional": lambda: torch._to_functional_tensor(torch.ones(3)),
    "memory given back": emptied,
    "memory given back, of a part": lambda: emptied(2),
    "of a subclass": lambda: torch.ones(3).as_subclass(Subclass),
    "of three bits": lambda: torch.empty(3, dtype=torch.int3),
    "packed": lambda: torch.empty(3, dtype=torch.float4_e2m1fn_x2),
    "of bits": lambda: torch.empty(3, dtype=torch.bits8),
    "an array of numpy": lambda: np.ones(3),
    "a class": lambda: torch.Tensor,
    "nothing": lambda: None,
}


@needs_it
@pytest.mark.filterwarnings("ignore:.*[qQ]uant:")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("what", STRANGE)
def test_what_is_no_ordinary_array_is_left_to_python_and_nothing_is_written(what):
    ring, x = Ring(), STRANGE[what]()
    before = ring.bytes()
    for key in (layout_key(torch.float32, (3,)), layout_key(torch.int8, (3,)), b""):
        assert ring.put(x, layout_key=key) is None
    assert ring.bytes() == before


@needs_it
def test_a_mode_of_the_users_sees_nothing_of_it():
    class Watchful(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            raise AssertionError(function)

    ring, x, key = Ring(), torch.ones(3), layout_key(torch.float32, (3,))
    with Watchful():
        assert ring.put(x, layout_key=key) is None
    with torch.device("cpu"):
        assert ring.put(x, layout_key=key) is None
    assert ring.put(x, layout_key=key) == 12


@needs_it
def test_a_dispatch_mode_of_the_users_sees_nothing_of_it_either():
    ring, x = Ring(), torch.ones(3)
    with torch._subclasses.FakeTensorMode():
        assert ring.put(x) == 12


@needs_it
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_jit_trace_records_nothing():
    ring, seen = Ring(), []

    def traced(x):
        seen.append(ring.put(x))
        return x * 2

    torch.jit.trace(traced, torch.ones(3), check_trace=False)
    assert seen == [None]


@needs_it
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own import
@pytest.mark.parametrize("width", [4, 0])
def test_tensors_inside_functorch_are_left_to_python(width):
    ring, seen = Ring(), []

    def look(x):
        seen.append(ring.put(x, layout_key=b""))
        return x.sum()

    x = torch.ones(3, width)
    torch.func.vmap(look)(x)
    torch.func.grad(look)(x)
    torch.func.vmap(torch.func.grad(look))(x)
    torch.func.functionalize(look)(x)
    torch.func.jvp(look, (x,), (x,))
    assert seen == [None] * 5


# -- layouts


@needs_it
@pytest.mark.parametrize(
    "key",
    [
        layout_key(torch.float64, (2, 3)),
        layout_key(torch.int32, (2, 3)),
        layout_key(torch.float32, (3, 2)),
        layout_key(torch.float32, (6,)),
        layout_key(torch.float32, (2, 3, 1)),
        b"",
        b"\0" * 3,
        b"\xff" * 24,
        layout_key(torch.float32, (2, 3)) + b"\0",
    ],
)
def test_a_tensor_of_another_layout_is_said_to_be_one_and_nothing_is_written(key):
    ring = Ring()
    before = ring.bytes()
    assert ring.put(torch.rand(2, 3), layout_key=key) == -2
    assert ring.bytes() == before


# -- arguments


@needs_it
@pytest.mark.parametrize("name", ["stream", "layout", "step", "pass_index", "call", "order"])
@pytest.mark.parametrize("number", [-(2**63) - 1, 2**63])
def test_a_number_that_no_slot_can_hold_is_left_to_python(name, number):
    ring = Ring()
    before = ring.bytes()
    assert ring.put(torch.ones(3), **{name: number}) is None
    assert ring.bytes() == before


@needs_it
def test_arguments_of_other_types_are_refused():
    ring, x = Ring(), torch.ones(3)
    for wrong in ({"stream": 1.5}, {"step": "1"}, {"order": None}, {"layout_key": "text"}):
        with pytest.raises(TypeError):
            ring.put(x, **wrong)
    key = layout_key(torch.float32, (3,))
    for wrong in ((x,), (x, 0, 0, key, (0, 0), 0), (x, 0, 0, key, [0, 0, 0], 0)):
        with pytest.raises(TypeError, match="layout_key: bytes"):
            ring.putter.put(*wrong)
    assert ring.consume() == []


@needs_it
@pytest.mark.slow
def test_nothing_it_is_given_is_kept_or_lost():
    ring, key = Ring(), layout_key(torch.float32, (3, 4))
    strange = [STRANGE[what]() for what in ("negated", "sparse", "meta", "memory given back")]
    given_to_it = [torch.rand(3, 4), torch.rand(4, 3), *strange, torch.rand(5000)]

    def rounds():
        for _ in range(200):
            for x in given_to_it:
                ring.putter.put(x, 1, 2, key, (1000, 3, 4), 2**40)
            ring.putter.put(given_to_it[0], 1, 2, key, (2**70, 3, 4), 5)
            ring.free()

    def counts():
        kept = [key, torch.float32, torch.Tensor, torch.Tensor.is_neg, ring.putter, *given_to_it]
        return [sys.getrefcount(one) for one in kept]

    rounds()
    counted, blocks = counts(), sys.getallocatedblocks()
    rounds()
    assert counts() == counted
    assert sys.getallocatedblocks() - blocks < 100


# -- where there is none


def test_for_another_torch_there_is_no_compiled_put(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.14.0+cpu")
    assert Ring().putter is None


def test_where_it_was_not_built_there_is_no_compiled_put(monkeypatch):
    monkeypatch.setitem(sys.modules, "anchorlib.recorder._put", None)
    monkeypatch.delattr("anchorlib.recorder._put", raising=False)
    assert Ring().putter is None


def test_one_of_another_layout_of_the_ring_is_not_used(monkeypatch):
    monkeypatch.setattr(putter_module, "VERSION", -1)
    assert Ring().putter is None
