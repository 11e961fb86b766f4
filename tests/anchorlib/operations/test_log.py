"""What was traced comes back from the log as it was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlib.errors import OptionError
from anchorlib.operations import (
    FLOAT,
    Op,
    OpForm,
    OpLog,
    TracedOp,
    check_entry,
    entry_key,
    gap_entry,
    gaps_of,
    read_entries,
    select_ops,
)
from tests.seeds import examples

TEXT = st.text("abAB.:_@ é", max_size=6)
SIZES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@st.composite
def traced(draw):
    digests = []

    def operands(most):
        found = []
        for _ in range(draw(st.integers(0, most))):
            has = draw(st.booleans())
            if has:
                digests.append(draw(st.binary(min_size=16, max_size=16)))
            shape = draw(SIZES)
            found.append((draw(TEXT), "float32", shape, tuple(reversed(shape)), has))
        return tuple(found)

    inputs, outputs = operands(3), operands(2)
    floats = tuple(draw(st.lists(st.floats(), max_size=2)))
    form = OpForm(
        draw(st.text("ab.", min_size=1)),
        draw(st.sampled_from(["forward", "backward", "optimizer"])),
        draw(TEXT),
        draw(st.none() | st.integers(0, 9)),
        draw(TEXT),
        draw(TEXT),
        inputs,
        outputs,
        "".join(f"a={FLOAT}, " for _ in floats),
        tuple(draw(st.none() | st.integers(1, 9)) for _ in inputs),
        (0,) if inputs and draw(st.booleans()) else (),
        draw(st.booleans()),
        draw(st.sampled_from(["eager", "graph", "inductor"])),
        draw(TEXT),
        draw(st.none() | st.integers(0, 9)),
    )
    return TracedOp(form, draw(st.integers(0, 2)), b"".join(digests), floats)


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(st.lists(st.lists(traced(), max_size=6), min_size=1, max_size=3))
def test_every_operation_comes_back_from_the_log(steps):
    log = OpLog()
    entries = [entry for step, ops in enumerate(steps) for entry in log.entries(step, ops)]
    entries = json.loads(json.dumps(entries))
    assert all(check_entry(entry) is entry for entry in entries)
    found = read_entries(entries, rank=3)
    given_ops = [(n, at, op) for n, ops in enumerate(steps) for at, op in enumerate(ops)]
    assert len(found) == len(given_ops)
    for op, (step, at, told) in zip(found, given_ops, strict=True):
        form = told.form
        assert (op.step, op.index, op.rank, op.pass_index) == (step, at, 3, told.pass_index)
        assert (op.op, op.stage, op.module, op.seq) == form[:4]
        assert (op.origin, op.group) == (form.origin, form.group)
        assert (op.node, op.where, op.source, op.view) == (
            *(form.node, form.where, form.source),
            form.view,
        )
        assert op.mutates == form.mutates
        both = [*form.inputs, *form.outputs]
        assert [(o.argument, o.dtype, o.shape, o.stride) for o in (*op.inputs, *op.outputs)] == [
            one[:4] for one in both
        ]
        digests = "".join(o.digest or "" for o in (*op.inputs, *op.outputs))
        assert digests == told.digests.hex()
        assert [o.digest is not None for o in (*op.inputs, *op.outputs)] == [x[4] for x in both]
        assert op.args == "".join(f"a={number!r}, " for number in told.floats)


def simple(name, **changed):
    form = OpForm(
        *(name, "forward", "", None, "", "", (), (), "", (), (), False, "eager"),
    )
    return TracedOp(form._replace(**changed), 0, b"", ())


def test_the_same_operations_have_the_same_structure_in_every_session():
    ops = [simple("aten.sin.default"), simple("aten.cos.default")]
    one, two = (list(OpLog().entries(step, ops)) for step in (0, 7))
    assert one[0] == two[0]
    assert one[1]["row"]["structure"] == two[1]["row"]["structure"]


def test_one_more_operation_changes_no_structure_of_another_stage():
    stages = ["forward"] * 3 + ["backward"] * 3
    ops = [simple("aten.sin.default", stage=stage) for stage in stages]
    log = OpLog()
    before = list(log.entries(0, ops))
    after = list(log.entries(1, [simple("aten.cos.default"), *ops]))
    assert [next(iter(entry)) for entry in before] == ["structure", "row"] * 2
    assert [next(iter(entry)) for entry in after] == ["structure", "row", "row"]


def test_a_step_that_runs_something_else_once_has_the_structures_of_each_of_its_steps():
    usual = [simple("aten.sin.default"), simple("aten.cos.default", stage="backward")]
    other = [simple("aten.sin.default"), simple("aten.tan.default", stage="backward")]
    steps = [usual, usual, other, usual, usual[:1], usual]
    log = OpLog()
    entries = [entry for step, ops in enumerate(steps) for entry in log.entries(step, ops)]
    assert sum("structure" in entry for entry in entries) == 3
    ran = [(step, op.form.op) for step, ops in enumerate(steps) for op in ops]
    assert [(op.step, op.op) for op in read_entries(entries)] == ran


def test_another_trace_states_its_structures_again_for_what_it_told_may_be_lost():
    ops = [simple("aten.sin.default"), simple("aten.cos.default", stage="backward")]
    log = OpLog()
    first = list(log.entries(0, ops))
    log.restate()
    again = list(log.entries(0, ops))
    assert again == first == list(OpLog().entries(0, ops))
    assert ["structure" in entry for entry in again] == [True, False] * 2


def test_no_block_is_larger_than_a_message():
    operand = ("out", "float32", (4,), (1,), True)
    wide = simple("aten.wide.default", outputs=(operand,) * 600)._replace(digests=bytes(9600))
    log = OpLog()
    entries = list(log.entries(0, [wide] * 40))
    assert max(len(json.dumps(entry)) for entry in entries) < 1 << 19
    assert len(read_entries(entries)) == 40


def test_of_a_step_that_was_traced_again_the_last_attempt_counts():
    log = OpLog()
    first = [*log.entries(0, [simple("a.a.a")] * 3), *log.entries(1, [simple("a.b.a")])]
    again = list(log.entries(1, [simple("a.c.a")] * 2))
    told = [{**e, "attempt": 0} for e in first] + [{**e, "attempt": 1} for e in again]
    assert [(op.step, op.op, op.attempt) for op in read_entries(told)] == [
        *[(0, "a.a.a", 0)] * 3,
        *[(1, "a.c.a", 1)] * 2,
    ]


@pytest.mark.parametrize("back", [0, -1, True, "1"])
def test_no_operation_takes_what_it_or_a_later_one_made(back):
    operand = ("self", "float32", (4,), (1,), False)
    ops = [simple("a.a.a"), simple("a.b.a", inputs=(operand,), producers=(back,))]
    with pytest.raises((TypeError, ValueError)):
        read_entries(OpLog().entries(0, ops))


def test_of_a_gap_the_last_total_counts():
    told = [gap_entry("why", 1, 0, 0), gap_entry("why", 3, 0, 2), gap_entry("else", 1, 4, 4)]
    found = gaps_of(told)
    assert [(gap.reason, gap.count, gap.last_step) for gap in found] == [
        ("why", 3, 2),
        ("else", 1, 4),
    ]


@pytest.mark.parametrize(
    "entry",
    [
        [],
        {},
        {"structure": "x", "ops": []},
        {"structure": "0" * 32, "ops": {}},
        {"structure": "0" * 32},
        {"row": {"step": -1, "first": 0, "structure": "0" * 32}},
        {"row": {"step": 0, "first": True, "structure": "0" * 32}},
        {"row": {"step": 0, "first": 0, "structure": 7}},
        {"row": 3},
        {"gap": {"reason": 3, "count": 1}},
        {"gap": {"reason": "r", "count": 1 << 80}},
    ],
)
def test_what_is_no_entry_is_refused(entry):
    with pytest.raises(ValueError, match="is malformed"):
        check_entry(entry)


def test_entries_are_told_apart_by_what_they_state():
    row = {"row": {"step": 1, "first": 2, "structure": "0" * 32}}
    other = {"row": {"step": 1, "first": 2, "structure": "1" * 32}}
    assert entry_key(row) == entry_key(other) != entry_key({**row, "attempt": 1})


OP = Op(
    0, "aten.sin.default", "forward", "fc1", 0, "", "a.py:1", (), (), "", (), (), view=False, step=2
)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, 1),
        ({"stage": "forward"}, 1),
        ({"stage": "backward"}, 0),
        ({"module": "fc1"}, 1),
        ({"module": "fc*"}, 1),
        ({"module": "fc"}, 0),
        ({"step": 2}, 1),
        ({"step": range(2)}, 0),
        ({"step": range(2, 5)}, 1),
    ],
)
def test_operations_are_chosen_by_stage_module_and_step(asked, found):
    assert len(select_ops([OP], **asked)) == found


def test_a_stage_that_there_is_not_is_refused():
    with pytest.raises(OptionError, match="forward, recompute"):
        select_ops([OP], stage="foreward")
