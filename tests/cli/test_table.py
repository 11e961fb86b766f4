"""Tables: aligned, within the terminal, whole in a pipe."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anchor_cli.table import Column, cut, width_of, written
from anchor_cli.terminal import Screen

PIPE = Screen()
COLUMNS = [Column("name", cut=True), Column("size", right=True), Column("note", spare=True)]
texts = st.text(st.sampled_from("ab.é中🙂\u0301"), max_size=40)


def test_columns_are_aligned_and_lines_end_with_their_text():
    rows = [("fc1", "7", "x"), ("encoder.fc2", "1234", "")]
    assert list(written(COLUMNS, rows, PIPE)) == [
        "name         size  note",
        "fc1             7  x",
        "encoder.fc2  1234",
    ]


def test_a_table_without_rows_is_its_head():
    assert list(written(COLUMNS, [], PIPE)) == ["name  size  note"]


def test_a_pipe_cuts_nothing():
    name = "encoder." * 40
    assert name in "\n".join(written(COLUMNS, [(name, "1", "n")], PIPE))


def test_a_terminal_cuts_long_names_in_the_middle():
    lines = list(written(COLUMNS, [("encoder.layers.11.attention.weight", "1", "n")], Screen(32)))
    assert lines[1] == "encoder.l...n.weight     1  n"


def test_spare_columns_go_before_names_become_unreadable():
    rows = [("encoder.layers.11.attention.weight", "1", "n" * 30)]
    lines = list(written(COLUMNS, rows, Screen(28, glyphs=True)))
    assert lines == ["name                  size", "encoder.la…on.weight     1"]


@given(
    st.lists(st.tuples(texts, texts, texts), max_size=4),
    st.integers(min_value=30, max_value=60),
    st.booleans(),
)
def test_no_line_is_wider_than_the_terminal(rows, width, glyphs):
    columns = [Column("a", cut=True), Column("b", cut=True), Column("c", spare=True)]
    for line in written(columns, rows, Screen(width, glyphs=glyphs)):
        assert width_of(line) <= width


@given(texts, st.integers(min_value=3, max_value=40))
def test_a_cut_text_fits_and_keeps_both_ends(text, width):
    short = cut(text, width)
    assert width_of(short) <= width
    if short != text:
        start, mark, end = short.partition("…")
        assert mark
        assert text.startswith(start)
        assert text.endswith(end)


def test_wide_characters_count_twice_and_combining_ones_not_at_all():
    assert width_of("中a\u0301") == 3
