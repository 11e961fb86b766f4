"""Which tensors a selector names."""

import itertools
import logging
import pickle

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from anchorlib.errors import UnknownTensorError
from anchorlib.names import KINDS, join, matches, parse, select
from anchorlib.names.selectors import tell

MODEL = [
    (name, kind)
    for name, kinds in {
        "fc1": ("value", "grad"),
        "fc1.weight": (*KINDS, "opt.exp_avg", "opt.exp_avg_sq"),
        "fc1.bias": (*KINDS, "opt.exp_avg", "opt.exp_avg_sq"),
        "fc10": ("value",),
        "fc2.bias": ("value", "pass_grad", "grad", "updated", "opt.momentum_buffer"),
        "user@home": ("value",),
        "line\nbreak": ("value",),
    }.items()
    for kind in kinds
]

names = st.text("ab./_0@*?[]:", min_size=1, max_size=6) | st.sampled_from(
    (
        "re:",
        "re:a",
        "re:(",
        "Gradient___a",
        "Accum___model.a",
        "a@grad",
        "@grad",
        "*",
        "@",
        "*@grad",
    )
)
kinds = st.sampled_from((*KINDS, "opt.exp_avg", "opt.*", "opt.a"))
universes = st.lists(st.tuples(names, kinds), min_size=1, max_size=12)


@pytest.fixture(autouse=True)
def every_notice_is_new():
    tell.cache_clear()


def chosen(*texts):
    return [join(name, kind) for name, kind in select(texts, MODEL)]


@pytest.mark.slow
@given(universes, st.data())
def test_an_exact_selector_selects_exactly_its_tensor(tensors, data):
    name, kind = data.draw(st.sampled_from(tensors))
    text = join(name, kind)
    found = select([text], tensors)
    if any(text == other for other, _ in tensors):  # an exact *name* wins over everything
        assert {other for other, _ in found} == {text}
    else:
        assert found == [(name, kind)]


@pytest.mark.slow
@given(universes, st.data())
def test_an_exact_name_selects_all_its_kinds_and_nothing_else(tensors, data):
    name, _ = data.draw(st.sampled_from(tensors))
    assert select([name], tensors) == list(
        dict.fromkeys(tensor for tensor in tensors if tensor[0] == name)
    )


@given(universes, st.lists(names | st.sampled_from(("a*", "?", "*@opt.*", "*@*grad")), max_size=3))
def test_what_is_selected_keeps_the_order_and_is_there_once(tensors, texts):
    known = [text for text in texts if _names_something(text, tensors)]
    found = select(known, tensors)
    assert found == [tensor for tensor in dict.fromkeys(tensors) if tensor in found]
    assert set(found) == set(itertools.chain(*(select([text], tensors) for text in known)))


@pytest.mark.slow
@given(universes, st.data())
def test_matching_one_by_one_finds_what_selecting_finds(tensors, data):
    name, kind = data.draw(st.sampled_from(tensors))
    text = join(name, kind)
    assume(not text.startswith("re:"))  # what is no regular expression has no selector
    assert matches(parse(text), name, kind)
    assert matches(parse(name), name, kind)


def _names_something(text, tensors):
    try:
        return bool(select([text], tensors))
    except UnknownTensorError:
        return False


def test_a_name_means_all_its_kinds():
    assert chosen("fc1") == ["fc1@value", "fc1@grad"]


def test_a_star_and_a_question_mark_are_wild():
    assert chosen("fc?@grad") == ["fc1@grad"]
    assert chosen("fc*@updated") == ["fc1.weight@updated", "fc1.bias@updated", "fc2.bias@updated"]
    assert chosen("line?break") == ["line\nbreak@value"]
    assert chosen("*") == [join(*tensor) for tensor in MODEL]


def test_a_kind_may_be_wild():
    assert chosen("*.bias@opt.*") == [
        "fc1.bias@opt.exp_avg",
        "fc1.bias@opt.exp_avg_sq",
        "fc2.bias@opt.momentum_buffer",
    ]
    assert chosen("fc2.bias@*grad") == ["fc2.bias@pass_grad", "fc2.bias@grad"]
    assert chosen("fc1@*") == ["fc1@value", "fc1@grad"]
    assert chosen("user@*") == ["user@home@value"]


def test_nothing_else_is_wild():
    with pytest.raises(UnknownTensorError, match=r"did you mean 're:fc\[12\]\.bias@grad'"):
        chosen("fc[12].bias@grad")
    assert select(["fc[12]"], [("fc[12]", "value"), ("fc1", "value")]) == [("fc[12]", "value")]


def test_a_regular_expression_matches_the_whole_name_and_a_kind_may_follow():
    assert chosen("re:fc[12]\\..*@updated") == [
        "fc1.weight@updated",
        "fc1.bias@updated",
        "fc2.bias@updated",
    ]
    assert chosen("re:(?i)FC1") == ["fc1@value", "fc1@grad"]
    assert chosen("re:fc1|fc10@value") == ["fc1@value", "fc10@value"]
    with pytest.raises(UnknownTensorError, match=r"did you mean 'fc2\.bias'"):
        chosen("re:fc2")


@pytest.mark.parametrize("text", ["re:[", "re:(?P<", "re:a{99999999999999}", "re:" + "(" * 20_000])
def test_a_bad_regular_expression_is_one_clear_line(text):
    with pytest.raises(UnknownTensorError, match="is not a regular expression") as caught:
        chosen(text)
    assert str(caught.value).isprintable()
    with pytest.raises(UnknownTensorError):
        parse(text)


def test_an_odd_but_good_regular_expression_warns_nobody():
    assert select(["re:[[]"], [("[", "value")]) == [("[", "value")]


def test_an_exact_name_wins_over_every_meaning_it_could_have():
    odd = ["a*", "re:.*", "re:(", "Gradient___fc1", "x@grad", "fc?"]
    tensors = [*((name, "value") for name in odd), *MODEL, ("x", "grad"), ("ab", "value")]
    for name in odd:
        assert select([name], tensors) == [(name, "value")]


def test_poptorch_spellings():
    assert chosen("Gradient___fc2.bias") == ["fc2.bias@pass_grad"]
    assert chosen("Gradient___fc1") == ["fc1@grad"]  # an activation has no pass_grad
    assert chosen("Accum___fc2.bias") == ["fc2.bias@grad"]
    assert chosen("FinalReducedGradient___fc2.bias") == ["fc2.bias@grad"]
    assert chosen("UpdatedVar___fc2.bias") == ["fc2.bias@updated"]
    assert chosen("Accl1___fc1.bias") == ["fc1.bias@opt.exp_avg"]
    assert chosen("Accl2___fc1.bias") == ["fc1.bias@opt.exp_avg_sq"]
    assert chosen("Accl___fc2.bias") == ["fc2.bias@opt.momentum_buffer"]


def test_what_a_poptorch_spelling_names_may_be_wild():
    assert chosen("Gradient___*") == [
        "fc1@grad",
        "fc1.weight@pass_grad",
        "fc1.bias@pass_grad",
        "fc2.bias@pass_grad",
    ]


def test_a_traced_models_prefix_is_taken_off_with_one_notice(caplog):
    with caplog.at_level(logging.WARNING, logger="anchorlib"):
        assert chosen("Gradient___model.fc2.bias") == ["fc2.bias@pass_grad"]
        assert chosen("Gradient___model.fc2.bias") == ["fc2.bias@pass_grad"]
    (record,) = caplog.records
    assert record.name == "anchorlib"
    assert record.getMessage() == (
        "'Gradient___model.fc2.bias' was read as 'Gradient___fc2.bias': "
        "only PopTorch's traced models put 'model.' before a name"
    )


def test_a_users_own_model_keeps_its_name_without_a_notice(caplog):
    tensors = [("model.fc2", "grad"), ("fc2", "grad")]
    assert select(["Gradient___model.fc2"], tensors) == [("model.fc2", "grad")]
    assert matches(parse("Gradient___model.fc2"), "model.fc2", "grad")
    assert not caplog.records


def test_a_gradient_not_known_in_advance_is_the_pass_grad_or_the_grad():
    selector = parse("Gradient___fc1")
    assert matches(selector, "fc1", "pass_grad")
    assert matches(selector, "fc1", "grad")
    assert matches(selector, "fc1", "grad", kinds=("value", "grad"))
    assert not matches(selector, "fc1", "grad", kinds=("grad", "pass_grad"))
    assert not matches(selector, "fc1", "value")
    assert not matches(selector, "fc2", "grad")


def test_matching_knows_every_form():
    assert matches(parse("fc1"), "fc1", "updated")
    assert matches(parse("fc*@opt.*"), "fc1.bias", "opt.exp_avg")
    assert not matches(parse("fc*@opt.*"), "fc1.bias", "grad")
    assert matches(parse("re:fc.@grad"), "fc1", "grad")
    assert not matches(parse("re:fc.@grad"), "fc1", "value")
    assert not matches(parse("fc1"), "fc10", "value")


def test_optimizer_state_may_come_later_but_only_of_what_is_there():
    texts = ["fc1.bias@opt.x", "fc10@opt.*", "re:fc1@opt.x", "Accl___fc1.bias", "fc1.bias@opt.exp*"]
    assert select(texts, MODEL, open_kinds=("opt.*",)) == [
        ("fc1.bias", "opt.exp_avg"),
        ("fc1.bias", "opt.exp_avg_sq"),
    ]
    for text in ("fc9@opt.x", "fc1@updated", "Accl___fc9"):
        with pytest.raises(UnknownTensorError):
            select([text], MODEL, open_kinds=("opt.*",))
    with pytest.raises(UnknownTensorError):
        select(["fc1@opt.x"], MODEL)


def test_further_outputs_may_come_later_but_only_of_what_is_there():
    for text in ("fc1:1", "fc1:key@grad", "fc1*:1", "Gradient___fc1:1"):
        assert select([text], MODEL, open_outputs=True) == []
        with pytest.raises(UnknownTensorError):
            select([text], MODEL)
    for text in ("fc9:1", "fc1:", "re:fc9:1"):
        with pytest.raises(UnknownTensorError):
            select([text], MODEL, open_outputs=True)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("fc2.bais", "did you mean 'fc2.bias'?"),
        ("fc2.bais@grad", "did you mean 'fc2.bias@grad'?"),
        ("FC2.Bias", "did you mean 'fc2.bias'?"),
        ("bias", "did you mean 'fc1.bias' or 'fc2.bias'?"),
        ("model.fc10", "did you mean 'fc10'?"),
        ("fc1@gard", "did you mean 'fc1@grad'?"),
        ("fc1@GRAD", "did you mean 'fc1@grad'?"),
        ("fc1@pass_grad", "did you mean 'fc1@grad'?"),
        ("fc1@delta", "the kinds of 'fc1' are value, grad"),
        ("fc?@delta", "the kinds of 'fc?' are value, grad"),
        ("UpdatedVar___fc1", "the kinds of 'fc1' are value, grad"),
        ("Gradient___fc2.bais", "did you mean 'Gradient___fc2.bias'?"),
        ("fc2", "did you mean 'fc2.*'?"),
        ("fc2@grad", "did you mean 'fc2.*@grad'?"),
        ("grad", "did you mean '*@grad'?"),
        ("@grad", "did you mean '*@grad'?"),
        ("zzz", "none of the 7 tensors has a similar name"),
    ],
)
def test_an_unknown_tensor_says_what_may_have_been_meant(text, hint):
    with pytest.raises(UnknownTensorError) as caught:
        select(["fc1", text], MODEL, where=" in run1")
    assert str(caught.value).endswith(f" in run1; {hint}")
    assert str(caught.value).startswith(f"no tensor {'matches' if '?' in text else 'is named'} '")


def test_an_empty_selector_says_what_to_write():
    with pytest.raises(UnknownTensorError, match="a selector is empty: name a tensor"):
        select(["fc1", ""], MODEL)


def test_an_unknown_tensor_survives_pickling():
    with pytest.raises(UnknownTensorError) as caught:
        select(["nothing"], [])
    assert str(pickle.loads(pickle.dumps(caught.value))) == (
        "no tensor is named 'nothing'; there are no tensors"
    )


@pytest.mark.slow
def test_a_hostile_name_cannot_reach_the_terminal_through_an_error():
    tensors = [("\x1b[2J\u202e", "opt.\x1b"), ("\x1b[2K\n", "value")]
    for text in ("\x1b[2", "\x1b[2J\u202e@grad", "\ud800", "x" * 100_000):
        with pytest.raises(UnknownTensorError) as caught:
            select([text], tensors)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1000


def test_a_glob_with_many_stars_does_not_try_every_way():
    # Trying every way would outlast the universe.
    assert _names_something("*a" * 200 + "b", [("a" * 1000, "value")]) is False
    assert _names_something("a*" * 200 + "?b*c", [("a" * 1000 + "bbc", "value")]) is True
