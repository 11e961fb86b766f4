"""The operations of two runs side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.operations import align_ops, base_name
from tests.anchorlib.operations.made import chain, made, tensor

NAMES = st.lists(st.sampled_from(["mul", "add", "tanh", "mm", "view", "detach", "sum"]), max_size=9)


def told(found):
    return [
        (one.stage, one.module, " ".join(one.only_a), " ".join(one.only_b), one.arguments)
        for one in found.differences
    ]


@given(NAMES.filter(bool))
def test_a_run_differs_in_no_operation_from_itself(names):
    found = align_ops(chain(names), chain(names))
    loud = [name for name in names if name not in ("view", "detach")]
    if loud:
        assert (found.matched, found.only_a, found.only_b) == (len(loud), 0, 0)
        assert not found.every
    else:
        assert found is None


@given(NAMES, NAMES)
def test_every_operation_has_a_partner_or_stands_in_one_run_alone(one, two):
    a, b = chain(["exp", *one]), chain(["exp", *two])
    found, back = align_ops(a, b), align_ops(b, a)
    loud = [sum(base_name(op.op) not in ("view", "detach") for op in ops) for ops in (a, b)]
    assert [found.matched + found.only_a, found.matched + found.only_b] == loud
    assert bool(found.only_a or found.only_b) == bool(back.only_a or back.only_b)


def test_operations_that_move_bits_are_no_difference():
    a = chain(["mm", "tanh"])
    b = chain(["t", "mm", "detach", "_to_copy", "tanh", "clone"])
    assert not align_ops(a, b).every


def test_a_copy_to_another_element_type_is_one():
    a, b = chain(["tanh"]), chain(["_to_copy", "tanh"])
    b[0] = replace(b[0], outputs=(tensor("out", "y", "bfloat16"),))
    assert told(align_ops(a, b)) == [("forward", "net", "", "_to_copy", "")]


def test_what_few_equal_operations_part_is_one_difference():
    a, b = chain(["mm", "tanh_backward", "mm"]), chain(["mm", "mul", "sub", "mul", "mm"])
    assert told(align_ops(a, b)) == [("forward", "net", "tanh_backward", "mul sub mul", "")]
    a = chain(["exp", "sin", "mul", "cos", "mm"])
    b = chain(["exp", "tan", "mul", "log", "mm"])
    assert told(align_ops(a, b)) == [("forward", "net", "sin mul cos", "tan mul log", "")]


def test_the_same_operation_with_other_arguments_is_a_difference():
    a, b = chain(["gelu"], args="approximate=none"), chain(["gelu"], args="approximate=tanh")
    found = align_ops(a, b)
    assert told(found) == [("forward", "net", "gelu", "gelu", "approximate none | tanh")]
    assert (found.matched, found.only_a, found.only_b) == (1, 0, 0)
    a, b = chain(["sum"], args="dim=[0, 1], keepdim=True"), chain(["sum"], args="dim=[0]")
    [one] = align_ops(a, b).differences
    assert one.arguments == "dim [0, 1] | [0], keepdim True | default"


@pytest.mark.parametrize(
    ("name", "args", "told_otherwise"),
    [
        ("aten.sub.Tensor", "self=1", ""),
        ("aten.sub.Tensor", "other=1", "1 - x | x - 1"),
        ("aten.sub.Scalar", "other=1, alpha=2", "1 - x | x - 1"),
    ],
)
def test_a_subtraction_the_other_way_round_is_another(name, args, told_otherwise):
    a = chain(["aten.rsub.Scalar"], args="other=1")
    [*found] = align_ops(a, chain([name], args=args)).every
    assert [one.arguments for one in found] == [told_otherwise] * bool(told_otherwise)


def test_where_a_tensor_lies_is_no_other_argument():
    a, b = chain(["sum"], args="device=cpu"), chain(["sum"], args="device=cuda:0")
    assert not align_ops(a, b).every


def test_another_element_type_is_another_argument():
    a = chain(["mm"])
    b = [replace(a[0], outputs=(tensor("out", "y", "bfloat16"),))]
    [one] = align_ops(a, b).differences
    assert one.arguments == "dtype float32 | bfloat16"


def test_digests_say_whether_equal_bits_went_in_and_came_out():
    def run(name, given, out):
        one = made("mm", 0, takes=("w",), gives=(given,))
        return [one, made(name, 1, takes=(given,), gives=(out,), by=(0,))]

    def bits(a, b):
        [one] = align_ops(a, b).differences
        return one.inputs_equal, one.outputs_equal

    plain = run("tanh", "x", "y")
    assert bits(plain, run("sigmoid", "x", "z")) == (True, False)
    assert bits(plain, run("sigmoid", "x", "y")) == (True, True)
    assert bits(plain, run("sigmoid", "q", "z")) == (False, False)
    assert bits(plain, run("sigmoid", None, None)) == (None, None)


def test_what_goes_in_is_followed_past_what_moves_bits_and_is_all_of_it():
    def run(name, first, second):
        return [
            made("mm", 0, gives=(first,)),
            made("exp", 1, gives=(second,)),
            made("t", 2, takes=(first,), gives=(f"{first} moved",), by=(0,), view=True),
            made(name, 3, takes=(f"{first} moved", second), gives=(name,), by=(2, 1)),
        ]

    for other, equal in ((("x", "y"), True), (("x", "q"), False), (("q", "y"), False)):
        [one] = align_ops(run("add", "x", "y"), run("sub", *other)).differences
        assert one.inputs_equal is equal


@pytest.mark.parametrize(
    ("moving", "equal"),
    [
        (made("copy_", 2, takes=("first", "second"), gives=("moved",), by=(0, 1)), True),
        (made("zeros_like", 2, takes=("first",), gives=("moved",), by=(0,)), True),
        (made("zero_", 2, takes=("first",), gives=("moved",), by=(0,)), True),
        (made("clone", 2, takes=("first",), gives=("moved",), by=(0,)), False),
    ],
)
def test_what_is_overwritten_or_only_gives_its_shape_goes_nowhere(moving, equal):
    def run(name, first):
        taken = tuple(replace(one, digest=first) for one in moving.inputs[:1])
        return [
            made("mm", 0, gives=(first,)),
            made("exp", 1, gives=("second",)),
            replace(moving, inputs=taken + moving.inputs[1:]),
            made(name, 3, takes=("moved", "second"), gives=(name,), by=(2, 1)),
        ]

    [one] = align_ops(run("add", "first"), run("sub", "other")).differences
    assert one.inputs_equal is equal


def test_an_operation_that_stands_elsewhere_in_the_same_code_is_a_difference():
    rest = ["mm", "exp", "mm", "exp", "mm"]
    a, b = chain(["sin", *rest], module=""), chain([*rest, "sin"], module="")
    assert [(one.only_a, one.only_b) for one in align_ops(a, b).every] == [
        (("sin",), ()),
        ((), ("sin",)),
    ]


def test_differences_that_are_alike_are_one_with_the_modules_that_have_it_too():
    a = [replace(made("tanh", n), module=f"act{n}") for n in range(4)]
    b = [replace(made("sigmoid", n), module=f"act{n}") for n in range(4)]
    [one] = align_ops(a, b).differences
    assert (one.module, one.like_it) == ("act0", ("act1", "act2", "act3"))
    assert len(align_ops(a, b).every) == 4


def test_the_same_in_every_step_and_pass_is_told_once():
    def steps(name):
        return [made(name, n, step=s, pass_index=n) for s in range(2) for n in range(2)]

    [one] = align_ops(steps("tanh"), steps("sin")).differences
    assert (one.only_a, one.only_b, one.like_it) == (("tanh",), ("sin",), ())


def test_another_schedule_is_no_difference_but_another_formula_is():
    one, two = made("exp", 0, takes=("x",)), made("mul", 1, takes=("y",))
    assert not align_ops([one, two], [replace(two, index=0), replace(one, index=1)]).every
    # (x + 1) · 2 and x · 2 + 1
    assert align_ops(chain(["add", "mul"]), chain(["mul", "add"])).every


def test_an_operation_of_a_module_inside_has_moved():
    a, b = [made("tanh", module="net.act")], [made("tanh", module="net")]
    assert not align_ops(a, b).every
    b = [made("tanh", module="head", gives=("other",))]
    assert len(align_ops(a, b).every) == 2
    assert not align_ops(a, [made("tanh", module="head")]).every, "the very same bits"


@pytest.mark.parametrize(
    ("own", "there", "moved"),
    [
        ("block", ["block.act", "block.out"], 0),
        ("block.act", ["net", "block"], 1),
        ("block", ["net", ""], 1),
        ("block", ["blocks.a", "net"], None),
    ],
)
def test_an_operation_moves_into_a_module_around_it_or_inside_or_to_its_bits(own, there, moved):
    a = [made("tanh", module=own, gives=("y",))]
    b = [made("tanh", n, module=name, gives=(f"z{n}",)) for n, name in enumerate(there)]
    left = [one.module for one in align_ops(a, b).every if one.b]
    assert left == [name for n, name in enumerate(there) if n != moved]
    b[1] = replace(b[1], outputs=(tensor("out", "y"),))
    assert align_ops(a, b).matched == 1


def test_modules_and_steps_that_are_counted_otherwise_are_aligned():
    a, b = [made("tanh", module="fc1", step=3)], [made("tanh", module="first", step=5)]
    assert align_ops(a, b) is None
    assert not align_ops(a, b, names={"first": "fc1"}, step_offset=2).every


def test_steps_and_passes_that_one_run_has_alone_say_nothing():
    a = [made("tanh", step=0), made("sin", step=1)]
    b = [made("tanh", step=0), made("cos", step=0, pass_index=1)]
    assert not align_ops(a, b).every


def test_what_checkpointing_repeats_is_no_difference():
    a = [made("tanh"), made("tanh", 1, stage="backward")]
    b = [*a, made("tanh", 2, stage="recompute")]
    assert not align_ops(a, b).every


def test_a_module_that_was_not_traced_in_one_run_says_nothing():
    a = [made("tanh", module="x"), made("mm", 1, module="y")]
    b = [made("sin", module="x")]
    assert len(align_ops(a, b).every) == 2
    [one] = align_ops(a, b, partial=True).every
    assert one.module == "x"


def test_a_graph_that_was_read_in_one_step_says_nothing_of_the_others():
    loss = [made("mean", 9, step=step) for step in range(2)]
    a = [made("tanh", step=step, module="act") for step in range(2)]
    b = [made("sin", module="act", source="aot")]
    [one] = align_ops(loss + a, loss + b).every
    assert [op.step for op in (*one.a, *one.b)] == [0, 0]
    assert len(align_ops(loss + a, [*loss, replace(b[0], source="eager")]).every) == 2


def test_what_a_compiler_decomposed_is_named():
    a = [made("tanh_backward")]
    b = [made(name, n, origin="aten.tanh_backward.default") for n, name in enumerate("xyx")]
    [one] = align_ops(a, b).differences
    assert one.decomposed_from == "tanh_backward"


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("aten.tanh_backward.default", "tanh_backward"),
        ("aten.rsub.Scalar", "sub"),
        ("prims.mul.default", "mul"),
        ("mylib.scan.default", "mylib.scan"),
        ("_call_other", "_call_other"),
        ("", ""),
    ],
)
def test_an_operation_has_a_short_name(op, name):
    assert base_name(op) == name
