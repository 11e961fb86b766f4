"""Which part a record is read from: each number once, from a part that has it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anchorlib.store.read.spans import Share, missing, spans


@st.composite
def lives(draw):
    """The shares of a session that moved on again and again, and how many records it made.

    Each part begins with the first record that was not acknowledged, and may have some more that
    the next one has as well.
    """
    shares, acknowledged = [], 0
    for place in range(draw(st.integers(1, 6))):
        first = acknowledged
        acknowledged = first + draw(st.integers(0, 30))
        shares.append(Share(first, acknowledged + draw(st.integers(0, 20)), place % 3, place))
    return shares


def read(shares):
    return [
        (number, span.share) for span in spans(shares) for number in range(span.first, span.end)
    ]


@given(lives(), st.randoms())
def test_every_record_is_read_once_and_in_order(shares, chance):
    wanted = max(share.end for share in shares)
    chance.shuffle(shares)
    found = read(shares)
    assert [number for number, _ in found] == list(range(wanted))
    assert all(share.first <= number < share.end for number, share in found)
    assert missing(shares, spans(shares)) is None


@given(lives())
def test_what_is_told_twice_is_read_where_the_session_went_on(shares):
    for number, share in read(shares):
        later = [one for one in shares if one.first <= number < one.end and one.first > share.first]
        assert not later


@given(lives(), st.data())
def test_a_part_that_is_not_there_is_missed(shares, data):
    gone = data.draw(st.sampled_from(shares))
    rest = [share for share in shares if share is not gone]
    there = {number for number, _ in read(rest)}
    begins = max((share.first for share in rest), default=0)
    known = max([begins, *(number + 1 for number in there)])
    holes = sorted(set(range(known)) - there)
    found = missing(rest, spans(rest))
    assert (found[0] if found else None) == (holes[0] if holes else None)
