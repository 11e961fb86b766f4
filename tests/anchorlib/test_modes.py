"""Each row of the mode table, with numbers."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.errors import ModeError
from anchorlib.folds import Fold
from anchorlib.modes import All, EveryN, Final, Mode, Sum, Summary, parse_mode, parse_modes


class Numbers:
    """Folding plain numpy arrays; int64 is wide enough here."""

    def copy(self, x):
        return x.copy()

    def recopy(self, kept, x):
        return x.copy()

    def widen(self, x):
        return x.astype(np.int64)

    def add(self, kept, x):
        kept += x

    def shapes(self, kept, x):
        return kept.shape, x.shape


def emitted(mode: Mode, observations: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(step of the last observation, value, count) of each record, for (step, value) pairs."""
    fold: Fold = Fold(mode, Numbers())
    records = []

    def keep(held):
        if held is not None:
            records.append((held.at, int(held.kept), held.count))

    for step, value in observations:
        x = np.array(value)
        if not fold.wants(step):
            continue
        if fold.holds:
            keep(fold.hold(step, step, x))
        else:
            records.append((step, value, 1))
    keep(fold.close())
    return records


ONE_TO_EIGHT = [(step, step + 1) for step in range(8)]


@pytest.mark.parametrize(
    ("mode", "records"),
    [
        (All(), [(s, s + 1, 1) for s in range(8)]),
        (Summary(), [(s, s + 1, 1) for s in range(8)]),
        (Sum("run"), [(7, 36, 8)]),
        (Sum(4), [(3, 10, 4), (7, 26, 4)]),
        (Sum(3), [(2, 6, 3), (5, 15, 3), (7, 15, 2)]),
        (Sum(), [(s, s + 1, 1) for s in range(8)]),
        (Final("run"), [(7, 8, 1)]),
        (Final(4), [(3, 4, 1), (7, 8, 1)]),
        (Final(3), [(2, 3, 1), (5, 6, 1), (7, 8, 1)]),
        (EveryN(3), [(2, 3, 1), (5, 6, 1)]),
        (EveryN(2), [(1, 2, 1), (3, 4, 1), (5, 6, 1), (7, 8, 1)]),
        (EveryN(1), [(s, s + 1, 1) for s in range(8)]),
        (EveryN(2, window=3), [(1, 2, 1), (4, 5, 1), (7, 8, 1)]),
        (EveryN(3, unit="step"), [(2, 3, 1), (5, 6, 1)]),
        (EveryN(2, unit="step", window=3), [(1, 2, 1), (4, 5, 1), (7, 8, 1)]),
        (EveryN(9), []),
    ],
    ids=str,
)
def test_a_stream_of_one_to_eight(mode, records):
    assert emitted(mode, ONE_TO_EIGHT) == records


TWO_PASSES = [(step, 10 * step + pass_index) for step in range(4) for pass_index in range(2)]


@pytest.mark.parametrize(
    ("mode", "values"),
    [
        (EveryN(2), [1, 11, 21, 31]),  # counted in observations: the second pass of each step
        (EveryN(3), [10, 21]),
        (EveryN(2, unit="step"), [10, 11, 30, 31]),  # both passes of every second step
        (EveryN(2, window=2), [1, 11, 21, 31]),
        (EveryN(3, window=2), [10, 30]),  # restarts at step 2
        (Sum(), [1, 21, 41, 61]),
        (Final(), [1, 11, 21, 31]),
        (Sum(2), [22, 102]),
    ],
    ids=str,
)
def test_two_passes_a_step(mode, values):
    assert [value for _, value, _ in emitted(mode, TWO_PASSES)] == values


def test_windows_are_absolute_wherever_a_stream_begins():
    assert emitted(Sum(10), [(7, 1), (8, 1), (9, 1), (10, 1), (11, 1)]) == [(9, 3, 3), (11, 2, 2)]
    assert emitted(Final(10), [(7, 1), (12, 2), (35, 3)]) == [(7, 1, 1), (12, 2, 1), (35, 3, 1)]
    assert emitted(EveryN(5, unit="step"), [(s, s) for s in range(7, 16)]) == [
        (9, 9, 1),
        (14, 14, 1),
    ]


def test_a_window_in_which_shapes_differ_is_refused_whole():
    fold: Fold = Fold(Sum(2), Numbers())
    fold.hold(0, 0, np.zeros((2, 3), int))
    fold.hold(1, 1, np.zeros((4, 3), int))
    ended = fold.hold(2, 2, np.ones((2, 3), int))
    assert ended is not None
    assert ended.refused == ((2, 3), (4, 3))
    assert ended.count == 2
    whole = fold.close()
    assert whole is not None
    assert whole.refused is None


def test_final_may_change_its_shape():
    fold: Fold = Fold(Final(2), Numbers())
    fold.hold(0, 0, np.zeros((2, 3), int))
    fold.hold(1, 1, np.zeros((4, 3), int))
    held = fold.close()
    assert held is not None
    assert held.kept.shape == (4, 3)


def test_a_held_observation_does_not_follow_its_source():
    x = np.array([1, 2])
    for mode in (Sum(5), Final(5)):
        fold: Fold = Fold(mode, Numbers())
        fold.hold(0, 0, x.copy())
        x += 100
        held = fold.close()
        assert held is not None
        assert held.kept.tolist() == [1, 2]
        x -= 100


FAULTS = {
    "EveryN without n": EveryN,
    "EveryN text without n": "every_n",
    "n of zero": EveryN(0),
    "negative n": EveryN(-3),
    "n that is no number": EveryN("ten"),
    "n that is a bool": EveryN(True),
    "unknown unit": EveryN(2, unit="minutes"),
    "n beyond its window": EveryN(11, unit="step", window=10),
    "window of zero": Sum(0),
    "window that is no number": Final("epoch"),
    "unknown text": "every",
    "text that is no number": "every_n:ten",
    "unknown option": "sum:size=3",
    "no mode at all": 3,
    "None": None,
}


@pytest.mark.parametrize("spec", FAULTS.values(), ids=FAULTS)
def test_a_wrong_mode_is_refused_where_it_meets_a_session(spec):
    with pytest.raises(ModeError) as caught:
        parse_mode(spec)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


def test_each_fault_has_a_sentence_of_its_own():
    sentences = set()
    for spec in (EveryN, EveryN(0), EveryN("ten"), EveryN(2, unit="minutes"), "every", Sum(0)):
        with pytest.raises(ModeError) as caught:
            parse_mode(spec)
        sentences.add(str(caught.value))
    with pytest.raises(ModeError) as caught:
        parse_mode(EveryN(11, unit="step", window=10))
    assert len({*sentences, str(caught.value)}) == 7


def test_a_constructor_refuses_nothing():
    assert EveryN().n is None
    assert EveryN(-1).n == -1


def test_n_larger_than_its_window_is_fine_where_they_count_different_things():
    assert parse_mode(EveryN(100, window=10)) == EveryN(100, window=10)


@pytest.mark.parametrize(
    ("spec", "mode"),
    [
        (All, All()),
        (Sum, Sum(1)),
        (Final, Final(1)),
        (Summary, Summary()),
        ("all", All()),
        ("sum", Sum()),
        ("final", Final()),
        ("summary", Summary()),
        ("every_n:10", EveryN(10)),
        ("EVERY_N:10", EveryN(10)),
    ],
)
def test_the_class_itself_and_the_strings_mean_modes(spec, mode):
    assert parse_mode(spec) == mode


windows = st.one_of(st.integers(1, 1000), st.just("run"))
modes = st.one_of(
    st.just(All()),
    st.just(Summary()),
    st.builds(Sum, windows),
    st.builds(Final, windows),
    st.builds(EveryN, st.integers(1, 50), st.sampled_from(["record", "step"]), st.none()),
    st.builds(
        EveryN, st.integers(1, 50), st.sampled_from(["record", "step"]), st.integers(50, 100)
    ),
)


@given(modes)
def test_a_mode_is_what_its_text_says(mode):
    assert parse_mode(str(mode)) == mode
    assert pickle.loads(pickle.dumps(mode)) == mode


def test_several_modes_are_a_list_without_repetition():
    assert parse_modes([All, "sum", All()]) == (All(), Sum())
    assert parse_modes("final") == (Final(),)
    with pytest.raises(ModeError, match="no mode"):
        parse_modes([])


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(-9, 9))), st.integers(1, 7))
def test_sums_lose_and_double_nothing(observations, window):
    ordered = sorted(observations, key=lambda pair: pair[0])
    records = emitted(Sum(window), ordered)
    assert sum(count for _, _, count in records) == len(ordered)
    assert sum(value for _, value, _ in records) == sum(value for _, value in ordered)
    assert len(records) == len({step // window for step, _ in ordered})
