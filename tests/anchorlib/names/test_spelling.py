"""Names, kinds and run names; how they are joined, split and shown."""

import enum
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.errors import AnchorError, InvalidNameError
from anchorlib.names import (
    KINDS,
    check_name,
    check_run_name,
    escape,
    is_kind,
    join,
    quoted,
    split,
)

kinds = st.sampled_from((*KINDS, "opt.exp_avg", "opt.x.y"))
names = st.text("ab./_0@*?[]:é\n\x1b", min_size=1)
shown_hard = st.text("\\abnrtux01fU\n\r\t\x1b\x7f\x9b\u202e\u2028\u200b\ud800\udfffé漢🔥\U000e0001")


@pytest.mark.parametrize("kind", KINDS)
def test_the_fixed_kinds_are_kinds(kind):
    assert is_kind(kind)


@pytest.mark.parametrize("text", ["", "opt", "opt.", "Grad", "grad ", "weight", "opt*"])
def test_nothing_else_is_a_kind(text):
    assert not is_kind(text)


@given(names, kinds)
def test_split_undoes_join(name, kind):
    assert split(join(name, kind)) == (name, kind)


def test_a_kind_splits_off_only_where_it_is_known():
    assert split("user@home") == ("user@home", None)
    assert split("user@home@grad") == ("user@home", "grad")
    assert split("w@opt.a@b") == ("w", "opt.a@b")
    assert split("fc1") == ("fc1", None)


@given(names)
def test_any_text_that_utf8_can_write_is_a_name_and_comes_back_exactly(name):
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["\n", "\x00", "\x1b[2J", "a" * 1024, "é" * 512, "../../etc", " "])
def test_hostile_names_are_names(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "has 0"),
        ("a" * 1025, "has 1025"),
        ("é" * 513, "has 1026"),
        ("a\ud800b", "surrogate at position 1"),
        (None, "not NoneType"),
        (b"fc1", "not bytes"),
    ],
)
def test_what_cannot_be_a_name_says_why_in_one_line(name, says):
    with pytest.raises(InvalidNameError, match=says) as caught:
        check_name(name)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 500
    assert isinstance(caught.value, AnchorError)
    assert isinstance(caught.value, ValueError)


def test_a_str_of_another_class_becomes_a_plain_str():
    class Layer(str, enum.Enum):  # noqa: UP042  StrEnum's str() would hide what this tests
        FIRST = "fc1"

    for name in (check_name(Layer.FIRST), check_name(np.str_("fc1"))):
        assert (type(name), name) == (str, "fc1")
    assert type(check_run_name(Layer.FIRST)) is str


@pytest.mark.parametrize("name", ["run1", "A-b_c.9", "_", "a" * 64, "0."])
def test_run_names(name):
    assert check_run_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "-",
        "-x",
        "--help",
        "..",
        ".hidden",
        "a/b",
        "a b",
        "é",
        "a\n",
        "run1\x00",
        "a" * 65,
        "٣",
        3,
        None,
    ],
)
def test_what_cannot_name_a_run_is_refused_in_one_line(name):
    with pytest.raises(InvalidNameError) as caught:
        check_run_name(name)
    assert str(caught.value).isprintable()


@given(shown_hard)
def test_what_is_shown_has_no_control_character(name):
    shown = escape(name)
    assert shown.isprintable()
    assert not {unicodedata.category(character) for character in shown} & {
        "Cc", "Cf", "Cs", "Zl", "Zp"
    }  # fmt: skip


@given(shown_hard, shown_hard)
def test_different_names_are_shown_differently(first, second):
    assert (escape(first) == escape(second)) == (first == second)


@given(shown_hard)
def test_no_other_name_looks_like_an_escaped_one(name):
    assert escape(escape(name)) != escape(name) or escape(name) == name


def test_readable_names_are_shown_as_they_are():
    for name in ("encoder.fc1:0@grad", "C:\\data", "重み", "naïve 🔥", "a'b"):
        assert escape(name) == name


def test_escapes_are_those_of_python():
    assert escape("a\x1b[31m\n") == "a\\x1b[31m\\n"
    assert escape("\u202egpj") == "\\u202egpj"
    assert escape("\\x1b") == "\\\\x1b"
    assert escape("\\\x1b") == "\\\\\\x1b"


def test_a_long_name_is_quoted_in_short():
    assert len(quoted("x" * 10_000_000)) < 250
