"""The compiled put: where in the ring it writes, and when it says that there is no room."""

from __future__ import annotations

import math
import mmap
import threading
import time
from struct import pack

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.recorder.layout import CONTROL_BYTES, SLOT_BYTES, Mark, Word
from tests.anchorlib.recorder.rings import WRITES_RINGS, Reference, Ring, up

pytestmark = pytest.mark.skipif(not WRITES_RINGS, reason="the compiled put was not built")


def values(size, salt=0):
    """A tensor of that many bytes."""
    return torch.arange(salt, salt + size).to(torch.uint8)


def without_time(ring):
    ring.entries["time_ns"] = 0
    return ring.bytes()


WORDS = (
    Word.PUBLISHED,
    Word.WRITTEN,
    Word.FLOOR,
    Word.CONSUMED,
    Word.MARKS + Mark.CONSUMED,
    Word.MARKS + Mark.FREED,
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 2048)),
        st.tuples(
            st.just("put"), st.sampled_from([0, 1, 63, 64, 65, 1024, 1536, 2047, 2048, 3000])
        ),
        st.tuples(st.just("consume"), st.integers(0, 4)),
    ),
    max_size=60,
)


@given(
    ACTIONS,
    st.sampled_from([(4, 2048), (8, 4096)]),
    st.sampled_from([0, 512]),
)
def test_it_writes_the_same_bytes_as_the_words_of_the_layout(actions, size, reserve):
    slots, payload = size
    made = (slots, payload, payload - reserve)
    ring, other = Ring(*made), Ring(*made)
    reference = Reference(other)
    for order, (action, number) in enumerate(actions):
        if action == "put":
            x = values(number, order)
            assert ring.put(x, order=order) == reference.put(x.numpy().tobytes(), order)
        else:
            assert len(ring.consume(number)) == len(other.consume(number))
        assert without_time(ring) == without_time(other)


@pytest.mark.slow
@given(ACTIONS)
def test_every_record_comes_out_whole_once_and_in_order(actions):
    ring, sent, got = Ring(slots=4, payload=4096), [], []
    for order, (action, number) in enumerate(actions):
        if action == "consume":
            got += ring.consume(number)
        elif ring.put(x := values(number, order), order=order) == number:
            sent.append((order, x.numpy().tobytes()))
    got += ring.consume()
    assert [(slot["order"], read) for slot, read in got] == sent


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 12))
def test_the_python_put_and_this_one_write_one_ring_in_turn(turns, free_every):
    ring, got = Ring(slots=8, payload=4096), []
    python, sent = Reference(ring), []
    for order, compiled in enumerate(turns):
        x = values(40 * order, order)
        done = ring.put(x, order=order) if compiled else python.put(x.numpy().tobytes(), order)
        if done >= 0:
            sent.append((order, x.numpy().tobytes()))
        if free_every and order % free_every == 0:
            got += ring.consume()
    got += ring.consume()
    assert [(slot["order"], read) for slot, read in got] == sent


def test_an_empty_ring_begins_again_at_its_first_byte():
    ring = Ring(payload=4096)
    for _ in range(5):
        assert ring.put(values(1000)) == 1000
        [(slot, _)] = ring.consume()
        assert slot["pos"] % 4096 == 0


def test_after_it_began_again_all_of_it_is_room():
    ring = Ring(payload=4096)
    ring.put(values(1000))
    ring.consume()
    assert [ring.put(values(1024)) for _ in range(5)] == [1024] * 4 + [-1]


def test_a_record_that_would_cross_the_end_begins_at_the_next_start():
    ring = Ring(payload=4096)
    ring.put(values(1500))
    ring.put(values(1500))
    ring.consume(1)
    assert ring.put(values(1600)) == -1  # neither behind the second nor before it
    assert ring.put(values(1500)) == 1500
    assert [int(slot["pos"]) for slot, _ in ring.consume()] == [1536, 4096]


def test_what_can_never_fit_is_left_to_python_and_what_cannot_now_is_told():
    ring = Ring(payload=4096, room=4096 - 512)
    assert ring.put(values(4096)) is None
    assert ring.put(values(4096 - 512 + 1)) is None
    assert ring.put(torch.empty(1 << 40, device="meta")) is None
    assert ring.put(values(4096 - 512)) == 4096 - 512
    assert ring.put(values(1)) == -1
    assert ring.put(values(0)) == 0


def test_slots_run_out_too():
    ring = Ring(slots=3)
    assert [ring.put(values(0)) for _ in range(4)] == [0, 0, 0, -1]
    ring.consume(1)
    assert [ring.put(values(0)) for _ in range(2)] == [0, -1]


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9000), min_size=6, max_size=6))
def test_whatever_stands_in_the_control_page_it_writes_only_where_records_go(numbers):
    ring = Ring(slots=4, payload=4096)
    for word, number in zip(WORDS, numbers, strict=True):
        ring.words[word] = number
    before = ring.bytes()
    end_of_slots = CONTROL_BYTES + 4 * SLOT_BYTES
    assert ring.put(values(1000)) in (1000, -1)
    after = ring.bytes()
    changed = np.flatnonzero(np.frombuffer(before, "u1") != np.frombuffer(after, "u1"))
    written = (changed >= 64) & (changed < 64 * 4)
    slots = (changed >= CONTROL_BYTES) & (changed < end_of_slots)
    payload = changed >= ring.payload_at
    assert (written | slots | payload).all()


# -- two threads


@pytest.mark.parametrize("shape", [(8, 8), (3, 100_000)], ids=["small", "beside the GIL"])
@pytest.mark.slow
def test_a_consumer_beside_it_sees_whole_records_in_order(shape):
    count = 3000 if shape == (8, 8) else 60
    size = 4 * math.prod(shape)
    ring = Ring(slots=64, payload=4 * up(size, 4096))
    seen, stop = [], threading.Event()

    def consume():
        while not stop.is_set() or ring.words[Word.PUBLISHED] != ring.words[Word.CONSUMED]:
            for slot, read in ring.consume():
                seen.append((int(slot["order"]), set(np.frombuffer(read, "<f4"))))
            time.sleep(0)

    consumer = threading.Thread(target=consume)
    consumer.start()
    try:
        x = torch.empty(shape)
        for order in range(count):
            x.fill_(order)
            while ring.put(x, order=order) == -1:
                time.sleep(0)
    finally:
        stop.set()
        consumer.join()
    assert seen == [(order, {float(order)}) for order in range(count)]


# -- the ring's life


def test_a_ring_can_be_closed_once_its_putter_is_gone():
    ring = Ring()
    del ring.words, ring.entries
    with pytest.raises(BufferError):
        ring.memory.close()
    del ring.putter
    ring.memory.close()


BAD = {
    "no slots": {"slots": 0},
    "fewer than none": {"slots": -1},
    "more slots than there are bytes": {"slots": 1 << 58},
    "slots in the control page": {"slots_at": 64},
    "slots askew": {"slots_at": CONTROL_BYTES + 4},
    "slots beyond the end": {"slots_at": 1 << 40},
    "slots over the payload": {"slots": 60},
    "payload askew": {"payload_at": 8192 + 8},
    "payload beyond the end": {"payload_bytes": 16384},
    "payload far beyond the end": {"payload_bytes": 2**63 - 64},
    "payload of an odd size": {"payload_bytes": 1000},
    "no payload": {"payload_bytes": 0},
    "more room than bytes": {"room": 8192},
    "less room than none": {"room": -1},
    "another torch": {"is_neg": torch.Tensor.add},
    "a number for a class": {"tensors": (1,)},
    "a class of others": {"tensors": (int,)},
}


@pytest.mark.parametrize("what", BAD)
def test_a_ring_that_is_not_one_is_refused(what):
    from anchorlib.recorder import _put

    memory = mmap.mmap(-1, 8192 + 4096)
    given_ = {
        "slots": 8,
        "slots_at": CONTROL_BYTES,
        "payload_at": 8192,
        "payload_bytes": 4096,
        "room": 4096,
        "exchange": torch.Tensor.__dlpack_c_exchange_api__,
        "tensors": (torch.Tensor,),
        "dtypes": (torch.float32,),
        "is_neg": torch.Tensor.is_neg,
        "dtype": torch.Tensor.dtype,
        "function_modes": torch._C._len_torch_function_stack,
        "is_tracing": torch._C._is_tracing,
        "is_wrapped": bool,
    }
    putter = _put.Putter(memory, **given_)
    assert putter.put(torch.ones(2), 0, 0, pack("=2q", 0, 2), (0, 0, 0), 0) == 8
    with pytest.raises((ValueError, TypeError)):
        _put.Putter(memory, **given_ | BAD[what])
    with pytest.raises((BufferError, TypeError)):
        _put.Putter(bytes(memory), **given_)
    del putter
    memory.close()  # what was refused holds nothing
