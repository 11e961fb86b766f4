"""Lineage on the wire: nothing is lost, and what cannot be is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.errors import AnchorError
from anchorlib.record import Edges, Parent
from anchorlib.wire import FrameError, Outbox, PushReply, parse_request, read_lineage
from anchorlib.wire.messages.lineage import lineage_messages
from anchorlib.wire.v1.collector_pb2 import Edges as WireEdges
from anchorlib.wire.v1.collector_pb2 import Lineage, Resume

names = st.text("ab./_0é\x1b", min_size=1, max_size=12)
numbers = st.integers(0, 2**40)
parents = st.builds(
    Parent, names, st.none() | numbers, numbers, st.none() | numbers, st.just("") | names
)


@st.composite
def edges(draw):
    """One statement whose inputs name what there is."""
    above = draw(st.lists(parents, max_size=3))
    ops = draw(st.lists(st.sampled_from(["TanhBackward0", "AddBackward0"]), max_size=4))
    sources = st.lists(st.integers(-len(above), len(ops) - 1), max_size=3)
    inputs = [draw(sources) for _ in ops]
    return Edges(
        draw(names),
        draw(names),
        draw(numbers),
        draw(numbers),
        tuple(draw(st.lists(numbers, max_size=4))),
        draw(numbers),
        parents=tuple(above),
        ops=tuple(ops),
        inputs=tuple(map(tuple, inputs)),
        missing=tuple(draw(st.lists(names, max_size=2))),
        grad=draw(st.booleans()),
        arguments=tuple(draw(st.sampled_from(["", "alpha=2"])) for _ in ops) * draw(st.booleans()),
    )


@pytest.mark.slow
@given(st.lists(edges(), max_size=4))
def test_the_wire_loses_no_edge(told):
    arrived = [
        one
        for message in lineage_messages(told)
        for one in read_lineage(Lineage.FromString(message.SerializeToString()))
    ]
    assert arrived == told


def test_many_edges_come_in_messages_that_are_not_large():
    told = [Edges(f"{n}" * 200, "train", 0, 0, (1,)) for n in range(1, 3000)]
    messages = list(lineage_messages(told))
    assert len(messages) > 1
    assert max(message.ByteSize() for message in messages) < 1 << 20
    assert [one for message in messages for one in read_lineage(message)] == told


GOOD = {"name": "h", "phase": "train", "ops": ["A", "B"], "arity": [1, 1], "inputs": [1, 0]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "n" * 2000},
        {"phase": ""},
        {"shape": [1] * 65},
        {"arity": [1]},
        {"arity": [1, 2]},
        {"arity": [3, 2**31]},
        {"inputs": [1, 2]},
        {"inputs": [1, -1]},
        {"parents": [{"name": ""}]},
        {"arguments": ["alpha=2"]},
    ],
)
def test_edges_that_cannot_be_are_refused(wrong):
    assert read_lineage(Lineage(edges=[WireEdges(**GOOD)]))
    with pytest.raises(AnchorError) as refused:
        read_lineage(Lineage(edges=[WireEdges(**GOOD | wrong)]))
    assert isinstance(refused.value, (FrameError, ValueError))


def test_every_new_stream_is_told_all_lineage_before_a_flush_is_answered():
    def said(outbox):
        messages = []
        while (message := outbox.next()) is not None:
            messages.append(parse_request(message).WhichOneof("message"))
        return messages

    outbox = Outbox()
    outbox.edges([Edges("h", "train", 0, 0, (1,))])
    assert outbox.next() is None
    outbox.flush()
    for _ in range(2):
        outbox.restart()
        outbox.take(PushReply(resume=Resume()))
        assert said(outbox) == ["lineage", "flush"]
    outbox.edges([Edges("y", "train", 0, 0, (1,))])
    outbox.close()
    assert said(outbox) == ["lineage", "close"]
