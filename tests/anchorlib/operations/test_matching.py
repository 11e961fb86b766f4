"""Long lists of operations are matched as small ones are, in nearly linear time."""

from __future__ import annotations

from difflib import SequenceMatcher
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.operations import matching
from anchorlib.operations.matching import matches

NAMES = st.lists(st.sampled_from(["mul", "add", "tanh", "mm"]), max_size=30)


def pairs(found):
    return [(one.a + n, one.b + n) for one in found for n in range(one.size)]


def exactly(a, b):
    """How many have a partner where each is compared with each."""
    return sum(
        one.size for one in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    )


@pytest.fixture(params=[0, 6, 1 << 14], ids=["nothing is small", "little is", "all is"])
def small(request, monkeypatch):
    monkeypatch.setattr(matching, "SMALL", request.param)


@pytest.mark.usefixtures("small")
@given(NAMES, NAMES)
def test_as_many_are_matched_as_by_each_with_each_and_in_order(a, b):
    found = pairs(matches(a, b))
    assert all(a[i] == b[j] for i, j in found)
    assert all(x < y and i < j for (x, i), (y, j) in pairwise(found))
    if not matching.SMALL:  # the fewest edits leave the most; difflib itself may leave less
        assert len(found) >= exactly(a, b)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@given(NAMES, st.sets(st.integers(0, 29)), st.sets(st.integers(0, 29)))
def test_marks_divide_lists_and_match_only_what_is_equal_and_in_order(a, left_out, put_in):
    kept = [n for n in range(len(a)) if n not in left_out]
    b = [(a[n], n) for n in kept]
    for at in sorted(put_in):
        b.insert(at, ("tanh", f"new {at}"))
    found = pairs(matches(a, [name for name, _ in b], (range(len(a)), [mark for _, mark in b])))
    assert all(a[i] == b[j][0] for i, j in found)
    assert len(found) == len(a) or left_out or put_in
    assert all(x < y and i < j for (x, i), (y, j) in pairwise(found))


@given(NAMES, NAMES)
def test_what_is_too_different_is_matched_in_pieces(a, b):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "SMALL", 4)
        patch.setattr(matching, "EDITS", 1)
        found = pairs(matches(a, b))
    assert all(a[i] == b[j] for i, j in found)
    assert all(x < y and i < j for (x, i), (y, j) in pairwise(found))


class Counted:
    """A name that counts how often it was compared."""

    compared = 0

    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        Counted.compared += 1
        return self.name == other.name

    def __hash__(self):
        return hash(self.name)


def compared(a, b, marks=None):
    Counted.compared = 0
    matches([Counted(one) for one in a], [Counted(one) for one in b], marks)
    return Counted.compared


@pytest.mark.parametrize("kind", ["few edits", "other bits everywhere", "many edits, known bits"])
@pytest.mark.slow
def test_four_times_as_many_operations_take_four_times_as_many_comparisons(kind):
    def of(count):
        a = ["mul", "add"] * (count // 2)
        if kind == "few edits":
            b = ["exp", *a[:100], "tanh", *a[100 : count - 50], "sin", *a[count - 50 :], "cos"]
            return compared(a, b)
        if kind == "other bits everywhere":
            a = [f"op{n * n % 7}" for n in range(count)]
            return compared(a, [f"no{n * n % 5}" for n in range(count)])
        b = [one if n % 10 else "tanh" for n, one in enumerate(a)]
        bits = [f"bit {n}" if n % 10 else None for n in range(count)]
        return compared(a, b, (bits, bits))

    small, large = of(2000), of(8000)
    assert large <= 5 * small
    assert large <= 200 * 8000, "each with each would be 64,000,000"
