"""Malformed messages: refused in words, never a defect, and no other stream is harmed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anchor_server import serve
from anchorlib.reading import open_run
from anchorlib.store import LocalLocation, list_runs
from anchorlib.wire import PushRequest, sealed
from anchorlib.wire.messages.checksum import SEAL_BYTES, sealed_bytes
from anchorlib.wire.v1 import collector_pb2 as wire
from tests.seeds import examples
from tests.server.pushing import Pusher, expected, record, stored

UINT32 = st.sampled_from([0, 1, 2, 2**16, 2**31 - 1, 2**31, 2**32 - 1])
UINT64 = st.sampled_from([0, 1, 2, 2**16, 2**31, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
INT64 = st.sampled_from([0, 1, -1, 2**31, -(2**31), 2**63 - 1, -(2**63)])
INT32 = st.sampled_from([0, 1, -1, 1023, -1074, 2**31 - 1, -(2**31)])
DOUBLE = st.floats()
TEXT = st.sampled_from(["", "a", "fc1", "grad", "all", "train", "x" * 1025, "\0", "../..", "é"])
DIGEST = st.sampled_from([b"", b"d", b"d" * 16, b"d" * 32, b"d" * 17])
PAYLOAD = st.sampled_from([b"", b"x", b"x" * 16, b"x" * 32])
FIELD = {
    "step": INT64,
    "pass_index": UINT64,
    "call": UINT64,
    "phase": UINT32,
    "attempt": UINT32,
    "order": INT64,
    "time_ns": INT64,
    "count": UINT64,
    "flags": UINT32,
    "scale": DOUBLE,
    "summary_only": st.booleans(),
    "min": DOUBLE,
    "max": DOUBLE,
    "sum": DOUBLE,
    "l2": DOUBLE,
    "zero": UINT64,
    "nan": UINT64,
    "inf": UINT64,
    "subnormal": UINT64,
    "bins": UINT32,
    "exponent": INT32,
    "elements": UINT64,
    "series": UINT32,
    "layout": UINT32,
}


@st.composite
def columns(draw: st.DrawFn) -> wire.Columns:
    """Columns of which most are left out and some are what they should not be."""
    names = draw(st.lists(st.sampled_from(sorted(FIELD)), max_size=4, unique=True))
    found = {name: draw(st.lists(FIELD[name], max_size=3)) for name in names}
    return wire.Columns(digest=draw(DIGEST), **found)


@st.composite
def frames(draw: st.DrawFn) -> wire.Frame:
    fragment = None
    if draw(st.booleans()):
        fragment = wire.Fragment(offset=draw(UINT64), total=draw(UINT64))
    return wire.Frame(
        first=draw(UINT64 | st.just(0)),
        columns=draw(columns()),
        fragment=fragment,
        payload=draw(PAYLOAD),
    )


DEFINES = st.builds(
    wire.Define,
    series=st.lists(st.builds(wire.Series, name=TEXT, kind=TEXT, mode=TEXT), max_size=2),
    layouts=st.lists(
        st.builds(
            wire.Layout,
            dtype=st.sampled_from(["float32", "bfloat16", "", "object", "bool"]),
            shape=st.lists(UINT64, max_size=3),
        ),
        max_size=2,
    ),
    phases=st.lists(TEXT, max_size=2),
)
GAPS = st.builds(
    wire.Gaps,
    gaps=st.lists(
        st.builds(
            wire.Gap, name=TEXT, kind=TEXT, mode=TEXT, reason=TEXT, count=UINT64,
            first_step=INT64, last_step=INT64,
        ),
        max_size=2,
    ),
)  # fmt: skip
LINEAGE = st.builds(
    wire.Lineage,
    edges=st.lists(
        st.builds(
            wire.Edges, name=TEXT, phase=TEXT, pass_index=UINT64, call=UINT64,
            shape=st.lists(UINT64, max_size=2), step=INT64, ops=st.lists(TEXT, max_size=2),
            arity=st.lists(UINT32, max_size=2), inputs=st.lists(INT32, max_size=2),
            parents=st.lists(st.builds(wire.Parent, name=TEXT, steps_back=UINT64), max_size=2),
        ),
        max_size=2,
    ),
)  # fmt: skip


@st.composite
def single_rows(draw: st.DrawFn) -> wire.Frame:
    """One row without values that is whole but for figures that may be out of any range."""
    names = draw(st.lists(st.sampled_from(sorted(FIELD)), max_size=3, unique=True))
    found = {name: [draw(FIELD[name])] for name in names}
    if draw(st.booleans()):
        found |= {"series": [0], "layout": [0], "phase": [0]}
    if "bins" in found and found["bins"][0] < 3:
        pairs = found["bins"][0]
        found |= {"exponent": [draw(INT32)] * pairs, "elements": [draw(UINT64)] * pairs}
    return wire.Frame(columns=wire.Columns(digest=b"d" * 16, **(found | {"summary_only": [True]})))


REQUESTS = st.one_of(
    st.builds(PushRequest, frame=frames()),
    st.builds(PushRequest, frame=single_rows()),
    st.builds(PushRequest, define=DEFINES),
    st.builds(PushRequest, gaps=GAPS),
    st.builds(PushRequest, lineage=LINEAGE),
    st.builds(PushRequest, flush=st.builds(wire.Flush, id=UINT64)),
    st.just(PushRequest()),
    st.just(PushRequest(close=wire.Close())),
    st.just(PushRequest(hello=wire.Hello())),
).map(sealed)
PROPER = sealed(
    PushRequest(
        define=wire.Define(
            series=[wire.Series(name="fc1", kind="grad", mode="all")],
            layouts=[wire.Layout(dtype="float32", shape=[4])],
            phases=["train"],
        )
    )
)


@st.composite
def garbled(draw: st.DrawFn) -> bytes:
    """A good message with bytes changed, left out, or put in."""
    message = bytearray(draw(REQUESTS)[:-SEAL_BYTES])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(message)))
        message[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=3))
    return sealed_bytes(bytes(message))


HELLOS = st.fixed_dictionaries(
    {},
    optional={
        "protocol": st.sampled_from([0, 2, 2, 2, 99]),
        "run": TEXT,
        "rank": UINT32,
        "writer_id": st.sampled_from([b"", b"x", b"f" * 16, b"x" * 17]),
        "resume": st.booleans(),
        "overwrite": st.booleans(),
        "header": st.sampled_from(
            ["", "{}", "[]", "{", "\0", '{"a": NaN}', "[" * 5000, '{"a":' * 900 + "1" + "}" * 900]
        ),
        "max_bytes": UINT64,
        "writer": TEXT,
    },
)
ANSWERS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.ABORTED,  # the stream of the example before was still being ended
}


class House:
    """A collector with one honest stream, which every example tries to harm."""

    def __init__(self, address: str, store) -> None:
        self.address = address
        self.store = store
        self.examples = 0
        self.honest = Pusher(address, run="honest", timeout=120)
        self.written: list = []

    def check(self) -> None:
        """The honest stream goes on, and nothing but what it sent is there."""
        self.written.append(record(len(self.written)))
        self.honest.push(self.written[-1])
        self.honest.acked(len(self.written))


@pytest.fixture
def house(tmp_path, caplog) -> Iterator[House]:
    caplog.set_level(logging.ERROR)
    with serve(tmp_path) as collector:
        found = House(collector.address, tmp_path)
        with found.honest:
            yield found
        assert stored(tmp_path, "honest") == expected(found.written)
        for run in list_runs(LocalLocation(tmp_path)):  # what was half said can be read by anyone
            open_run(run, tmp_path).tensors()
    assert caplog.text == ""  # the collector logs what it takes for a defect of its own


FUZZ = settings(
    max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def refused_in_words(house: House, messages: list[bytes], **hello) -> None:
    house.examples += 1  # each writes a rank of its own, from the first record on
    said = {"run": "fuzzed", "rank": house.examples, "writer_id": os.urandom(16)} | hello
    with Pusher(house.address, **said) as stream:
        stream.send(*messages)
        stream.send_end()
        code, details = stream.refusal()
    assert (code in ANSWERS, "\n" in details, len(details) <= 500) == (True, False, True), (
        code,
        details,
    )


@FUZZ
@given(
    st.lists(
        REQUESTS | garbled() | st.binary(max_size=40).map(sealed_bytes) | st.binary(max_size=40),
        min_size=1,
        max_size=5,
    )
)
def test_whatever_a_stream_says_it_is_refused_in_words(house, messages):
    refused_in_words(house, [PROPER, *messages])
    house.check()


@FUZZ
@given(HELLOS)
def test_whatever_a_hello_says_it_is_refused_in_words(house, hello):
    refused_in_words(house, [], **hello)
    house.check()


@FUZZ
@given(
    st.binary(max_size=200) | st.binary(max_size=200).map(sealed_bytes),
    st.sampled_from(["Get", "List"]),
)
def test_whatever_a_reader_asks_it_is_answered(house, message, method):
    allowed = {
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
    }
    with grpc.insecure_channel(house.address) as channel:
        call = channel.unary_unary(f"/anchorlib.wire.v1.Reader/{method}")
        error = call.future(message, timeout=10).exception()
    if error is not None:
        assert error.code() in allowed, error.details()
