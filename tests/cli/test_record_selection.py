"""--step and its companions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchor_cli.arguments.record_selection import Selection, parse_steps
from anchorlib.errors import ModeError, OptionError

steps = st.integers(min_value=0, max_value=50)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        (None, (0, None)), ("5", (5, 6)), ("5:10", (5, 10)), ("5:", (5, None)), (":10", (0, 10)),
        (":", (0, None)), ("0", (0, 1)), (" 3 ", (3, 4)),
        ("-1", (-1, None)), ("-3", (-3, -2)), ("-3:", (-3, None)), (":-1", (0, -1)),
        ("5:-1", (5, -1)),
    ],
)  # fmt: skip
def test_steps_are_half_open_as_pythons_range(text, meaning):
    assert parse_steps(text) == meaning


@pytest.mark.parametrize(
    "text", ["x", "1:2:3", "--1", "-", "-1:-1", "-2:-3", "1.5", "5:5", "5:3", "", "²"]
)
def test_steps_that_cannot_be_are_refused_with_an_example(text):
    with pytest.raises(OptionError, match="--step"):
        parse_steps(text)


@given(steps, st.none() | steps, steps, steps)
def test_a_span_is_met_where_any_of_its_steps_is_selected(first, more, one, two):
    stop = None if more is None else first + more + 1
    selection = Selection(*parse_steps(f"{first}:{'' if stop is None else stop}"))
    span = range(min(one, two), max(one, two) + 1)
    wanted = range(first, 1000 if stop is None else stop)
    assert selection.meets(span[0], span[-1]) == bool(set(span) & set(wanted))


@given(st.integers(-60, 60), st.none() | st.integers(-60, 60), steps)
def test_negative_steps_count_from_the_last_as_in_a_slice(first, stop, last):
    there = list(range(last + 1))
    wanted = there[first:stop]
    selection = Selection(first, stop)
    if selection.from_the_end and not wanted:
        with pytest.raises(OptionError, match=f"the last step is {last}$"):
            selection.within(last)
        return
    selection = selection.within(last)
    assert not selection.from_the_end
    assert there[selection.first : selection.stop] == wanted


def test_a_mode_is_taken_in_any_spelling_the_library_takes():
    selection = Selection.of(None, None, None, None, None, "Every_N:10:unit=record")
    assert selection.mode == "every_n:10"
    with pytest.raises(ModeError):
        Selection.of(None, None, None, None, None, "every_n")


def test_a_selection_is_told_as_the_options_that_make_it():
    selection = Selection(3, 5, pass_index=0, rank=1, phase="eval")
    assert str(selection) == "--step 3:5 --pass 0 --rank 1 --phase eval"
    assert str(Selection()) == ""
