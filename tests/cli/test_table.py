"""Tables: aligned, within the terminal, whole in a pipe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchor_cli.terminal import Screen
from anchor_cli.terminal.table import Column, cut, cut_apart, cut_name, width_of, written

PIPE = Screen()
COLUMNS = [Column("name", cut=True), Column("size", right=True), Column("note", spare=1)]
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


def test_what_can_be_spared_first_goes_first():
    columns = [Column("a", spare=1), Column("b", spare=2), Column("c"), Column("d", spare=2)]
    shown = [next(written(columns, [("1", "2", "3", "4")], Screen(w))) for w in (10, 9, 6, 3)]
    assert shown == ["a  b  c  d", "b  c  d", "b  c", "c"]


def test_spare_columns_go_before_names_become_unreadable():
    rows = [("encoder.layers.11.attention.weight", "1", "n" * 30)]
    lines = list(written(COLUMNS, rows, Screen(28, glyphs=True)))
    assert lines == ["name                    size", "encoder.lay…ion.weight     1"]


def test_readable_names_are_cut_after_all_others():
    columns = [Column("a", cut=True, main=True), Column("b", cut=True), Column("c", spare=1)]
    row = ("encoder.11.weight", "float32|bfloat16", "c" * 20)
    (_, line) = written(columns, [row], Screen(40))
    assert line == "encoder.11.weight  float32|bfloat16"
    (_, line) = written(columns, [row], Screen(27))
    assert line == "encoder.11.weight  flo...16"
    (_, line) = written(columns, [row], Screen(24))
    assert line == "...11.weight    flo...16"


def test_a_name_loses_its_start_and_begins_with_a_module_where_it_can():
    name = "bert.encoder.layer.11.attention.self.query.weight@grad"
    assert cut_name(name, 36) == "…11.attention.self.query.weight@grad"
    assert cut_name(name, 33) == "…attention.self.query.weight@grad"
    assert cut_name(name, 32, "...") == "...self.query.weight@grad"
    assert cut_name(name, 12) == "…weight@grad"
    assert cut_name(name, 10) == "…ight@grad"
    assert cut_name("fc1.weight", 10) == "fc1.weight"


@given(texts, st.integers(min_value=3, max_value=40))
def test_a_shortened_name_fits_and_keeps_its_end(text, width):
    short = cut_name(text, width)
    assert width_of(short) <= width
    assert short == text or text.endswith(short.removeprefix("…"))


def test_names_of_a_transformer_keep_the_modules_end_in_a_table():
    columns = [Column("name", cut=True, main=True), Column("note")]
    parts = ["attention.self.query", "attention.output.dense", "intermediate.dense"]
    names = [f"bert.encoder.layer.{n}.{part}.weight" for n in range(3) for part in parts]
    lines = list(written(columns, [(name, "n" * 40) for name in names], Screen(80, glyphs=True)))
    shown = [line.split()[0] for line in lines[1:]]
    assert len(set(shown)) == len(names)
    assert all(
        name.endswith(part.removeprefix("…")) for name, part in zip(names, shown, strict=True)
    )


@pytest.mark.parametrize("mark", ["…", "..."])
@pytest.mark.parametrize("width", [8, 9, 11])
def test_names_that_differ_still_do_when_they_are_cut(width, mark):
    names = ["conv1.weight", "conv2.weight", "conv1.bias_of_it", "fc"]
    short = cut_apart(names, width, mark)
    assert len(set(short.values())) == len(names)
    assert short["fc"] == "fc"
    assert max(map(width_of, short.values())) <= width


def test_what_tells_many_layers_apart_is_shown():
    names = [f"encoder.layers.{n}.attn.{q}.weight" for n in range(12) for q in "qkv"]
    for width in (16, 20, 24, 30):
        assert len(set(cut_apart(names, width).values())) == len(names)
    assert cut_apart(names, 16)["encoder.layers.7.attn.k.weight"] == "…7.attn.k.weight"


def test_a_narrow_table_tells_its_names_apart():
    columns = [Column("name", cut=True, main=True), Column("note")]
    rows = [("conv1.weight", "n" * 20), ("conv2.weight", "n" * 20)]
    _, first, second = written(columns, rows, Screen(30, glyphs=True))
    assert first.split()[0] != second.split()[0]


@given(st.lists(texts, max_size=8), st.integers(min_value=8, max_value=30))
def test_texts_that_are_cut_apart_fit_and_are_never_more_alike(several, width):
    short = cut_apart(several, width)
    assert set(short) == set(several)
    assert all(width_of(shown) <= width for shown in short.values())
    assert len(set(short.values())) >= len({cut(text, width) for text in several})


@given(
    st.lists(st.tuples(texts, texts, texts), max_size=4),
    st.integers(min_value=30, max_value=60),
    st.booleans(),
)
def test_no_line_is_wider_than_the_terminal(rows, width, glyphs):
    columns = [Column("a", cut=True), Column("b", cut=True), Column("c", spare=1)]
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
