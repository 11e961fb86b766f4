"""Arrays as text."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from anchorlib.capture.inline.array_text import FLOAT_FORMATS, PrintFormat, format_edges
from anchorlib.errors import AnchorError, OptionError

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
arrays = st.sampled_from(["f2", "f4", "f8", "i1", "u8", "?", "c8"]).flatmap(
    lambda dtype: hnp.arrays(dtype, shapes)
)
formats = st.fixed_dictionaries(
    {},
    optional={
        "summarise_threshold": st.integers(0, 50),
        "edge_items": st.integers(0, 3),
        "max_line_width": st.integers(0, 60),
        "digits": st.integers(0, 17),
        "float_format": st.sampled_from(FLOAT_FORMATS),
        "separator": st.sampled_from([" ", ",", ", ", "", " | "]),
        "open_bracket": st.sampled_from(["(", "["]),
    },
)
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


def printed(array, **style):
    """`array` as text, all of it or the ends of its dimensions, as `style` has it."""
    form = PrintFormat(**style)
    cut = form.cut(array.shape)
    for axis, is_cut in enumerate(cut):
        if is_cut:
            size = array.shape[axis]
            ends = [*range(form.edge_items), *range(size - form.edge_items, size)]
            array = array.take(ends, axis)
    return format_edges(array, cut, form)


def test_integers_are_aligned_on_one_line_as_popart_prints_them():
    style = {"separator": " ", "open_bracket": "[", "close_bracket": "]"}
    assert printed(np.array([5, 7, 9]), **style) == "[5 7 9]"
    assert printed(np.array([6, 9, 12]), **style) == "[ 6  9 12]"


def test_rows_are_indented_by_their_depth():
    assert printed(np.arange(8).reshape(2, 2, 2)) == (
        "(\n (\n  (0, 1)\n  (2, 3)\n )\n (\n  (4, 5)\n  (6, 7)\n )\n)"
    )


def test_a_large_array_shows_its_edges_in_every_dimension():
    array = np.arange(10_000).reshape(100, 100)
    assert printed(array, edge_items=1) == "(\n (   0, ...,   99)\n ...\n (9900, ..., 9999)\n)"
    assert printed(np.arange(1001), edge_items=2) == "(   0,    1, ...,  999, 1000)"
    assert printed(np.zeros((2, 600), "i4"), edge_items=1) == "(\n (0, ..., 0)\n (0, ..., 0)\n)"
    assert printed(np.arange(1001), edge_items=0) == "(...)"


def test_only_what_exceeds_the_threshold_is_summarised_and_0_never():
    array = np.zeros(1000, "i4")
    assert "..." not in printed(array)
    assert "..." in printed(array, summarise_threshold=999)
    assert "..." not in printed(np.zeros(5000, "i4"), summarise_threshold=0)


def test_a_short_dimension_is_not_cut():
    assert printed(np.arange(7), summarise_threshold=1) == "(0, 1, 2, ..., 4, 5, 6)"
    assert printed(np.arange(6), summarise_threshold=1) == "(0, 1, 2, 3, 4, 5)"


def test_a_long_row_goes_on_indented_by_two_more_and_0_never_splits():
    array = np.arange(6)
    assert printed(array, max_line_width=8, separator=",") == "(0,1,2,\n  3,4,5)"
    assert "\n" not in printed(np.arange(900), max_line_width=0)


def test_a_separator_of_several_characters_is_honoured_in_full():
    assert printed(np.array([1, 2]), separator=" <> ") == "(1 <> 2)"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.0, 2.0], "(1.000, 2.000)"),
        ([123.456, 1.0], "(123.5,   1.0)"),
        ([9999.0, 5.0], "(9999,    5)"),
        ([10000.0, 5.0], "(1.000e+04, 5.000e+00)"),
        ([0.5, 0.25], "(0.5000, 0.2500)"),
        ([0.0, 0.0], "(0.000, 0.000)"),
        ([1.5, 0.001], "(1.500, 0.001)"),
        ([1.5, 0.0001], "(1.500e+00, 1.000e-04)"),
        ([0.0002, 0.0001], "(0.0002000, 0.0001000)"),
        ([2e-5, 0.0], "(2.000e-05, 0.000e+00)"),
        ([0.99999, 0.5], "(1.000, 0.500)"),
        ([np.nan, np.inf, -np.inf, 1.0], "(  nan,   inf,  -inf, 1.000)"),
        ([np.nan, -np.inf], "( nan, -inf)"),
    ],
)
def test_auto_is_fixed_where_the_digits_suffice_for_every_element(values, text):
    assert printed(np.array(values)) == text


def test_the_other_float_formats_are_taken_at_their_word():
    values = np.array([12345.678, 0.00012])
    assert printed(values, float_format="fixed") == "(12346,     0)"
    assert printed(values, float_format="scientific") == "(1.235e+04, 1.200e-04)"
    assert printed(values, float_format="none") == "(1.235e+04,   0.00012)"


def test_without_digits_each_element_stands_in_full():
    values = np.array([0.1, 1e-12, 123456.79], "f4")
    assert printed(values, digits=0) == "(0.1, 1e-12, 123456.79)"
    assert printed(np.array([5, 10]), digits=0) == "(5, 10)"


def test_complex_numbers_and_booleans():
    assert printed(np.array([1 + 2j, -3.5 - 1j])) == "( 1.000+2.000j, -3.500-1.000j)"
    assert printed(np.array([complex(np.inf, np.nan)])) == "(inf+nanj)"
    assert printed(np.array([True, False])) == "( True, False)"


def test_what_has_no_elements_is_a_pair_of_brackets():
    for shape in [(0,), (0, 3), (3, 0), (10**9, 0)]:
        assert printed(np.zeros(shape)) == "()"


def test_a_number_without_dimensions_has_no_brackets():
    assert printed(np.array(1.5)) == "1.500"


@pytest.mark.slow
@given(arrays, formats)
def test_every_array_has_a_text_with_each_element_that_is_shown(array, options):
    form = PrintFormat(**options)
    cut = form.cut(array.shape)
    shown = [2 * form.edge_items if c else n for c, n in zip(cut, array.shape, strict=True)]
    separator = {"separator": ";", "max_line_width": 0}
    rows = printed(array, **{**options, **separator}).replace("[", "(").split("\n")
    texts = "".join(rows).replace("(", ";").replace(")", ";").replace("...", "").split(";")
    assert sum(bool(text.strip()) for text in texts) == np.prod(shown, dtype=int)


@pytest.mark.slow
@given(arrays, formats)
def test_no_line_is_too_long_unless_it_holds_one_element(array, options):
    width = PrintFormat(**options).max_line_width
    for line in printed(array, **{**options, "separator": ";"}).split("\n"):
        elements = [part for part in line.strip(" ([)").split(";") if part]
        assert width == 0 or len(line) <= width or len(elements) <= 1


@pytest.mark.slow
@given(hnp.arrays("f4", st.integers(1, 8), elements=finite), st.integers(1, 9))
def test_the_largest_magnitude_keeps_its_digits(array, digits):
    for float_format in ("auto", "fixed", "scientific"):
        text = printed(array, digits=digits, float_format=float_format, max_line_width=0)
        read = np.array([float(part) for part in text.strip("()").split(",")])
        largest = np.abs(array).max()
        error = np.abs(read - array.astype("f8")).max()
        assert error <= 0.5001 * float(largest) * 10.0 ** (1 - digits)


@pytest.mark.slow
@given(hnp.arrays("f4", st.integers(1, 8), elements=finite), st.integers(1, 9))
def test_auto_never_shows_a_nonzero_as_zero(array, digits):
    text = printed(array, digits=digits, max_line_width=0)
    read = [float(part) for part in text.strip("()").split(",")]
    assert [value == 0 for value in read] == [value == 0 for value in array]


@pytest.mark.slow
@given(hnp.arrays(st.sampled_from(["f2", "f4", "f8"]), st.integers(1, 8)))
def test_no_digits_lose_nothing(array):
    text = printed(array, digits=0, max_line_width=0)
    read = np.array([float(part) for part in text.strip("()").split(",")]).astype(array.dtype)
    np.testing.assert_array_equal(read, array)


def test_a_bad_option_names_its_choices():
    with pytest.raises(OptionError) as caught:
        printed(np.zeros(1), float_format="scientifc")
    assert str(caught.value) == (
        "float_format is one of 'auto', 'fixed', 'scientific', 'none', not 'scientifc'; "
        "did you mean 'scientific'?"
    )
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, AnchorError)
    counts = ("summarise_threshold", "edge_items", "max_line_width", "digits")
    for name, bad in itertools.product(counts, (-1, 1.5, None)):
        with pytest.raises(OptionError, match=f"^{name} is an int of 0 or more, not {bad}"):
            printed(np.zeros(1), **{name: bad})
