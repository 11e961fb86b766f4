"""Records to frames and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.block import block_of
from anchorlib.record import Coordinates, Record
from anchorlib.summary import summarise
from anchorlib.wire import Decoder, Encoder, GarbledError, ParsedFrame, parse_request
from anchorlib.wire.messages.checksum import SEAL_BYTES, check_of, check_seal, sealed, sealed_bytes
from anchorlib.wire.v1.collector_pb2 import GetReply, GetRequest, PushRequest
from tests.anchorlib.wire.strategies import bits, records
from tests.writing import records_of


def record(raw: np.ndarray, step: int = 0, name: str = "fc1") -> Record:
    return Record(
        name=name,
        kind="grad",
        mode="all",
        coordinates=Coordinates(step),
        order=step,
        time_ns=1,
        dtype=raw.dtype.name,
        shape=raw.shape,
        raw=raw,
        summary=summarise(raw, raw.dtype.name),
    )


def messages(encoder: Encoder, batches: Iterable[list[Record]]) -> list[bytes]:
    """All that a stream would carry."""
    sent, defined = [], 0
    for batch in batches:
        for frame in encoder.encode(block_of(batch)):
            sent += encoder.definitions[defined : frame.definitions]
            defined = frame.definitions
            sent.append(frame.message)
    return sent


def decoded(sent: Iterable[bytes], decoder: Decoder, rank: int = 0) -> list[tuple[int, Record]]:
    found = []
    for message in sent:
        request = parse_request(message)
        if isinstance(request, ParsedFrame):
            got = records_of(decoder.block(request), rank)
            found += list(enumerate(got, request.head.first))
        else:
            decoder.define(request.define)
    return found


@pytest.mark.slow
@given(st.lists(st.lists(records(rank=3), max_size=5), max_size=3), st.integers(1, 300))
def test_the_wire_loses_nothing(batches, frame_bytes):
    sent = messages(Encoder(frame_bytes=frame_bytes), batches)
    found = decoded(sent, Decoder(), rank=3)
    assert [number for number, _ in found] == list(range(sum(map(len, batches))))
    assert [bits(r) for _, r in found] == [bits(r) for batch in batches for r in batch]


def test_a_large_array_is_not_copied_until_its_message_is_wanted():
    raws = [np.arange(1 << 16, dtype="<f4") + n for n in range(3)]
    small = np.arange(7, dtype="<f4")
    encoder = Encoder()
    (frame,) = encoder.encode(block_of([record(raw) for raw in (raws[0], small, *raws[1:])]))
    views = [part for part in frame.parts if len(part) == raws[0].nbytes]
    assert all(np.shares_memory(view, raw) for view, raw in zip(views, raws, strict=True))
    assert PushRequest.FromString(frame.message).SerializeToString() == frame.message
    assert frame.nbytes == len(frame.message)
    kept = frame.joined()
    for raw in raws:
        raw[:] = -1
    found = [one for _, one in decoded([*encoder.definitions, kept.message], Decoder())]
    assert [one.raw[5] for one in found] == [5, 5, 6, 7]
    with pytest.raises(GarbledError):
        parse_request(frame.message)  # it was a view all along


@pytest.mark.slow
@given(st.lists(records(), max_size=4), st.integers(1, 300))
def test_every_message_is_what_protobuf_itself_would_write(batch, frame_bytes):
    for message in messages(Encoder(frame_bytes=frame_bytes), [batch]):
        assert PushRequest.FromString(message).SerializeToString() == message


@pytest.mark.slow
@given(st.lists(records(), min_size=1, max_size=4))
def test_a_frame_laid_out_otherwise_is_read_all_the_same(batch):
    def payload_first(message: bytes) -> bytes:
        request = PushRequest.FromString(message)
        if request.WhichOneof("message") != "frame":
            return message
        payload = PushRequest()
        payload.frame.payload = request.frame.payload
        request.frame.ClearField("payload")
        # Protobuf merges a message field that comes twice.
        request.ClearField("check")
        return sealed_bytes(payload.SerializeToString() + request.SerializeToString())

    sent = [payload_first(m) for m in messages(Encoder(), [batch])]
    assert [bits(r) for _, r in decoded(sent, Decoder())] == [bits(r) for r in batch]


@pytest.mark.slow
def test_many_small_records_share_a_frame_and_none_is_larger_than_the_limit():
    batch = [record(np.full(100, step, np.float32), step) for step in range(5000)]
    sent = messages(Encoder(), [batch])
    assert len(sent) < 10
    assert max(map(len, sent)) < 1.1 * 2**20


def test_a_large_record_comes_in_fragments_of_a_frame_each():
    values = np.arange(5 * 2**18 + 5, dtype=np.float32)
    sent = messages(Encoder(), [[record(np.ones(1, np.float32)), record(values)]])
    frames = [request for m in sent if isinstance(request := parse_request(m), ParsedFrame)]
    assert [len(f.payload) for f in frames] == [4, *[2**20] * 5, 20]
    (_, back) = decoded(sent, Decoder())[1]
    assert back.raw is not None
    assert np.array_equal(back.raw, values)


def test_a_record_of_four_frames_travels_whole():
    batch = [record(np.full(size, 1, np.float32)) for size in (9, 2**18, 2**20, 9)]
    sent = messages(Encoder(), [batch])
    frames = [request for m in sent if isinstance(request := parse_request(m), ParsedFrame)]
    assert [len(frame.payload) for frame in frames] == [36, 2**20, 2**22, 36]
    assert len(decoded(sent, Decoder())) == 4


def test_a_new_stream_needs_the_definitions_alone():
    encoder = Encoder()
    list(encoder.encode(block_of([record(np.ones(2, np.float32))])))
    later = list(encoder.encode(block_of([record(np.ones(2, np.float32), 1)])))
    found = decoded([*encoder.definitions, *(f.message for f in later)], Decoder())
    assert [(n, r.name, r.coordinates.step) for n, r in found] == [(1, "fc1", 1)]


@given(st.data())
def test_a_flipped_bit_of_a_payload_is_noticed(data):
    sent = messages(Encoder(), [[record(np.arange(1, 50, dtype=np.float32))]])
    body = bytearray(sent[-1][:-SEAL_BYTES])
    place = data.draw(st.integers(8 * (len(body) - 196), 8 * len(body) - 1))
    body[place // 8] ^= 1 << place % 8
    # Before the message was sealed: the digest was made earlier still.
    with pytest.raises(GarbledError, match="'fc1'@grad at step 0"):
        decoded([*sent[:-1], sealed_bytes(bytes(body))], Decoder())


@pytest.mark.slow
@given(st.data())
def test_a_flipped_bit_of_any_message_is_noticed(data):
    sent = messages(Encoder(), [data.draw(st.lists(records(), min_size=1, max_size=3))])
    message = bytearray(data.draw(st.sampled_from(sent)))
    place = data.draw(st.integers(0, 8 * len(message) - 1))
    message[place // 8] ^= 1 << place % 8
    with pytest.raises(GarbledError, match="does not fit its checksum"):
        parse_request(bytes(message))


@given(st.data(), st.binary(max_size=30), st.integers(0, 2**64 - 1))
def test_an_answer_fits_its_own_question_alone(data, content, other):
    question = sealed(GetRequest(key=data.draw(st.text(max_size=9))))
    answer = sealed(GetReply(size=30, data=content), check_of(question))
    check_seal(answer, check_of(question))
    if other != check_of(question):
        with pytest.raises(GarbledError):
            check_seal(answer, other)


@pytest.mark.slow
@given(st.data())
def test_whatever_arrives_is_a_record_or_an_error_that_says_so(data):
    sent = messages(
        Encoder(frame_bytes=64), [data.draw(st.lists(records(), min_size=1, max_size=3))]
    )
    at = data.draw(st.integers(0, len(sent) - 1))
    message = bytearray(sent[at][:-SEAL_BYTES])
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.none() | st.integers(0, len(message)))
    sent[at] = sealed_bytes(bytes(message[:cut]))
    with contextlib.suppress(ValueError):  # which all of them are
        decoded(sent, Decoder(record_bytes=1 << 16))
