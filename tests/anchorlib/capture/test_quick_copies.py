"""What most observations take a short way by, and what must not go that way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import anchorlib
from anchorlib.capture.recording.streams import UNSCALED
from anchorlib.capture.tensors.snapshot import dtype_name, quick_place, values_writer
from anchorlib.dtypes import DTYPES
from anchorlib.modes import All, EveryN, Sum
from anchorlib.recorder.ring import move
from anchorlib.summary import as_storage
from tests.recording import recording
from tests.strategies import stored

MIB = 1 << 20
DTYPES_OF_TORCH = {one for one in vars(torch).values() if isinstance(one, torch.dtype)}
# In one order for every process that collects these tests.
STORED = sorted((one for one in DTYPES_OF_TORCH if dtype_name(one) in DTYPES), key=dtype_name)


def pattern(dtype, count):
    """All sorts of bits, NaNs of every kind among them."""
    bits = torch.arange(count * dtype.itemsize, dtype=torch.int64).mul(37).to(torch.uint8)
    return (bits % 2 if dtype is torch.bool else bits)[: count * dtype.itemsize].view(dtype)


def bytes_of(nbytes, write):
    """What `write` puts at an address."""
    memory = np.zeros(max(1, nbytes), np.uint8)
    write(memory.ctypes.data)
    return memory[:nbytes].tobytes()


@pytest.mark.parametrize("dtype", STORED, ids=dtype_name)
@pytest.mark.parametrize("shape", [(), (3, 5), (1, 0, 2), (64, 257)])
def test_the_short_way_and_the_long_one_give_the_same_bits(dtype, shape):
    x = pattern(dtype, int(np.prod(shape))).reshape(shape)
    raw, _ = as_storage(x)
    slow = bytes_of(x.nbytes, values_writer(x))
    assert slow == raw.tobytes()
    place = quick_place(x)
    if place is None:
        assert dtype.is_complex or 0 in shape
        return
    address, *told, nbytes = place
    assert (told, nbytes) == ([x.dtype, x.shape], raw.nbytes)
    assert bytes_of(nbytes, lambda target: move(target, address, nbytes)) == slow


@pytest.mark.slow
def test_whichever_way_a_tensor_takes_into_the_ring_its_record_is_the_same():
    with recording() as run:

        @settings(max_examples=200)
        @given(raw=stored(), known=st.booleans())
        def holds(raw, known):
            all_ways_agree(run, *raw, known=known)

        holds()


def all_ways_agree(run, array, name, *, known):
    """Compiled code, Python and torch place the same record; known: of a shape seen before."""
    recorder = run.session._observer.recorder
    memory = torch.frombuffer(bytearray(array.tobytes() or b"\0"), dtype=torch.uint8)
    x = memory[: array.nbytes].clone().view(getattr(torch, name)).reshape(array.shape)
    at = run.session._observer.clock.now()
    [stream] = recorder.streams("x", "value", [(All(), None)], "train")
    if known:
        recorder.observe((stream,), at, x)
    taken = [
        recorder.quick(stream, at, x) is not None,
        recorder._place_in_python(stream, at, x, UNSCALED) is not None,
    ]
    assert all(taken) or x.is_complex() or not x.numel()
    with recorder._lock:
        recorder._take(stream, at, x, UNSCALED)
    run.session._queue.flush(60)
    records = list(run.sink.records)
    run.sink.records.clear()
    assert len(records) == 1 + known + sum(taken)
    assert {one.raw.tobytes() for one in records} == {array.tobytes()}
    assert len({(one.dtype, one.shape, one.coordinates, repr(one.summary)) for one in records}) == 1
    assert records[0].shape == array.shape


@pytest.mark.parametrize("nbytes", [4, 32 << 10, (32 << 10) + 4, 2 * MIB - 4, 2 * MIB, 5 * MIB])
def test_a_copy_of_any_size_is_whole_and_keeps_what_it_was(nbytes):
    with recording() as run:
        x = torch.arange(nbytes // 4, dtype=torch.float32)
        before = x.numpy().copy()
        anchorlib.anchor(x, "x")
        x.fill_(-1)
    assert run.arrays("x")[0].tobytes() == before.tobytes()


def freed():
    x = torch.ones(4, 4)
    x.untyped_storage().resize_(0)
    return x


ODD = {
    "negated": lambda: torch._neg_view(torch.ones(3, 4)),
    "imaginary part of a conjugate": lambda: torch.ones(1, dtype=torch.complex64).conj().imag,
    "conjugated": lambda: torch.full((3,), 1j).conj(),
    "zeros without memory": lambda: torch._efficientzerotensor((2, 3)),
    "transposed": lambda: torch.rand(3, 4).t(),
    "expanded": lambda: torch.rand(1).expand(5),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "of mkldnn": lambda: torch.eye(3).to_mkldnn(),
    "meta": lambda: torch.empty(3, device="meta"),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "memory given back": freed,
    "empty": lambda: torch.empty(0),
}


@pytest.mark.filterwarnings("ignore:.*[qQ]uant:")
@pytest.mark.parametrize("what", ODD)
def test_what_does_not_lie_in_memory_as_it_is_goes_the_long_way(what):
    assert quick_place(ODD[what]()) is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_go_the_long_way():
    x = torch.nested.as_nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    assert quick_place(x) is None


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own import
def test_tensors_inside_functorch_go_the_long_way():
    seen = []

    def look(x):
        seen.append(quick_place(x))
        return x.sum()

    x = torch.ones(3, 4)
    torch.func.vmap(look)(x)
    torch.func.grad(look)(x)
    torch.func.vmap(torch.func.grad(look))(x)
    torch.func.functionalize(look)(x)
    torch.func.jvp(look, (x,), (x,))
    assert seen == [None] * 5


@pytest.mark.parametrize("what", ["negated", "zeros without memory", "expanded", "transposed"])
def test_the_long_way_records_what_they_stand_for(what):
    torch.manual_seed(0)
    x = ODD[what]()
    with recording() as run:
        anchorlib.anchor(x, "x")
    assert np.array_equal(run.arrays("x")[0], (x + 0).resolve_neg().numpy())


def test_a_listing_counts_shapes_phases_and_bytes_as_they_come():
    with recording() as run:
        for shape in [(2, 3), (4, 3), (2, 3), (2, 3)]:
            anchorlib.anchor(torch.ones(shape), "x")
            run.session.step()
        with run.session.phase("test"):
            anchorlib.anchor(torch.ones(2, 3), "x")
        (x,) = run.session.tensors()
        (again,) = run.session.tensors()
    assert (x.shape, x.records, x.first_step, x.last_step) == ((None, 3), 5, 0, 4)
    assert x.bytes == 4 * (6 + 12 + 6 + 6 + 6)
    assert x == again


def rested(mode, *, steps=7, reentrant=None):
    """A watched model with an anchor inside, whose modules are recorded in `mode`."""
    torch.manual_seed(0)
    first, last = nn.Linear(3, 3), nn.Linear(3, 2)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = first, last

        def forward(self, x):
            if reentrant is None:
                h = self.first(x)
            else:
                h = torch.utils.checkpoint.checkpoint(self.first, x, use_reentrant=reentrant)
            return self.last(anchorlib.anchor(h, "h", All))

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with recording(mode=mode) as run:
        run.session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(steps):
            optimizer.zero_grad()
            for _ in range(2):
                model(torch.ones(4, 3, requires_grad=True)).sum().backward()
            with torch.no_grad():
                model.eval()(torch.ones(1, 3, requires_grad=True))
            model.train()
            optimizer.step()
    found = {(r.name, r.kind, r.coordinates): r.raw.tobytes() for r in run.sink.records}
    assert len(found) == len(run.sink.records)
    return found, run.session.counters.skipped


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_steps_that_are_not_selected_change_nothing_in_those_that_are(reentrant):
    every, _ = rested(All, reentrant=reentrant)
    third, skipped = rested(EveryN(3, unit="step"), reentrant=reentrant)
    selected = {
        where: raw for where, raw in every.items() if where[0] == "h" or where[2].step in (2, 5)
    }
    assert third == selected
    assert not skipped


def test_a_model_rests_only_where_none_of_its_modes_selects_anything():
    model = nn.Sequential(nn.Linear(2, 2))
    with recording() as run:
        run.session.watch(model, tensors=["0@value"], mode=EveryN(2, unit="step"))
        run.session.watch(model, tensors=["0@value"], mode=Sum)
        for _ in range(4):
            model(torch.ones(1, 2))
            run.session.step()
    assert [r.step for r in run.records("0", mode="sum")] == [0, 1, 2, 3]
    assert [r.step for r in run.records("0", mode="every_n:2:unit=step")] == [1, 3]


def test_a_step_ended_by_hand_after_a_rested_one_is_a_step_of_its_own():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(mode=EveryN(1000, unit="step")) as run:
        run.session.watch(model, optimizer=optimizer)
        for number in range(1, 4):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            assert run.session.current_step == number
        model(torch.ones(1, 2)).sum().backward()
        run.session.step()
        assert run.session.current_step == 4
