"""`anchor ops`: traced operations, chosen and shown."""

from __future__ import annotations

import dataclasses

import pytest

from anchor_cli.commands import ops
from anchor_cli.terminal import Screen
from anchorlib.operations import FLOAT, Op, OpForm, OpLog, TracedOp, gap_entry
from anchorlib.reading import open_run
from anchorlib.store import Writer
from tests.cli.made import HOSTILE, anchor, make_run, record

X = ("self", "float32", (5, 4), (4, 1), True)
Y = ("out", "float32", (5, 4), (4, 1), True)


def traced(op, stage, module, **changed):
    form = OpForm(
        op, stage, module, 0, "", "net.py:12", (X,), (Y,), "", (None,), (), False, "eager"
    )
    floats = changed.pop("floats", ())
    return TracedOp(form._replace(**changed), 0, bytes(range(32)), floats)


STEP = [
    traced("aten.tanh.default", "forward", "tanh1"),
    traced("aten.mul.Scalar", "forward", "", args=f"other={FLOAT}", floats=(0.5,)),
    traced("aten.tanh_backward.default", "backward", "tanh1", node="TanhBackward0"),
    traced("aten.add_.Tensor", "optimizer", "fc1", mutates=(0,)),
]


def make_traced(store, ops=STEP, gaps=(), rank=0):
    log = OpLog()
    with Writer.open(store, "run1", rank) as writer:
        for step in range(3):
            writer.operations(list(log.entries(step, ops)))
        writer.operations(gaps)


def listed(*options, store):
    return anchor("ops", "run1", "--store", store, *options)


def test_operations_are_listed_in_the_order_in_which_they_ran(tmp_path):
    make_traced(tmp_path)
    done = listed("--step", "0", store=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "step  op  stage      module  operation      makes  where      arguments\n"
        "   0   0  forward    tanh1   tanh           5x4    net.py:12\n"
        "   0   1  forward    -       mul.Scalar     5x4    net.py:12  other=0.5\n"
        "   0   2  backward   tanh1   tanh_backward  5x4    net.py:12\n"
        "   0   3  optimizer  fc1     add_.Tensor    5x4    net.py:12\n"
    )


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ((), 12),
        (("--step", "1"), 4),
        (("--step", "1:"), 8),
        (("--step", "-1"), 4),
        (("--stage", "backward"), 3),
        (("--module", "tanh1"), 6),
        (("--module", "*1"), 9),
        (("--grep", "tanh"), 6),
        (("--grep", "Backward0$"), 3),
        (("--grep", "net[.]py:12"), 12),
        (("--grep", "other=0[.]5"), 3),
        (("--grep", "tanh", "--stage", "forward", "--step", "0:2"), 2),
    ],
)
def test_operations_are_narrowed_by_step_stage_module_and_text(tmp_path, options, found):
    make_traced(tmp_path)
    assert len(listed(*options, "--json", store=tmp_path).json) == found


def test_operations_as_json_have_exactly_these_fields(tmp_path):
    make_traced(tmp_path)
    one = listed("--json", "--grep", "tanh_backward", "--step", "1", store=tmp_path).json
    digest = bytes(range(32)).hex()
    operand = {"dtype": "float32", "shape": [5, 4], "stride": [4, 1]}
    assert one == [
        {
            "index": 2,
            "op": "aten.tanh_backward.default",
            "stage": "backward",
            "module": "tanh1",
            "seq": 0,
            "node": "TanhBackward0",
            "where": "net.py:12",
            "inputs": [{"argument": "self", **operand, "digest": digest[:32]}],
            "outputs": [{"argument": "out", **operand, "digest": digest[32:]}],
            "args": "",
            "producers": [None],
            "mutates": [],
            "view": False,
            "origin": "",
            "group": None,
            "source": "eager",
            "step": 1,
            "pass_index": 0,
            "rank": 0,
            "attempt": 0,
        }
    ]
    assert list(one[0]) == [field.name for field in dataclasses.fields(Op)]


def test_eighty_columns_are_enough_for_what_matters(tmp_path):
    long = "encoder.layers.11.attention.self.query"
    wide = [traced("aten.native_layer_norm_backward.default", "accumulate", long, args="x" * 99)]
    make_traced(tmp_path, ops=wide)
    lines = list(ops._table(open_run("run1", tmp_path).ops(), Screen(80, glyphs=True)))
    assert max(map(len, lines)) <= 80
    assert "accumulate" in lines[1]
    assert "self.query" in lines[1]
    assert "native_lay" in lines[1]


def test_compiled_operations_have_origin_and_kernel_at_eighty_columns(tmp_path):
    parts = [
        traced(op, "backward", "blocks.0.norm2", origin="aten.tanh_backward.default", group=12)
        for op in ("aten.mul.Tensor", "aten.sub.Tensor")
    ]
    make_traced(tmp_path, ops=[*parts, STEP[0]])
    lines = list(ops._table(open_run("run1", tmp_path).ops(step=0), Screen(80, glyphs=True)))
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[4:8] == ["operation", "origin", "kernel", "makes"]
    assert lines[1].split()[2:7] == [
        "backward",
        "blocks.0.norm2",
        "mul.Tensor",
        "tanh_backward",
        "12",
    ]
    found = listed("--grep", "tanh_back", "--json", store=tmp_path).json
    assert {(one["op"], one["origin"], one["group"]) for one in found} == {
        ("aten.mul.Tensor", "aten.tanh_backward.default", 12),
        ("aten.sub.Tensor", "aten.tanh_backward.default", 12),
    }


@pytest.mark.parametrize("columns", [80, 60])
def test_columns_of_a_pipe_are_honoured(tmp_path, monkeypatch, columns):
    wide = [
        traced("aten.native_layer_norm_backward.default", "accumulate", "a" * 30, args="x" * 99)
    ]
    make_traced(tmp_path, ops=wide)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert max(map(len, listed(store=tmp_path).out.splitlines())) > 120
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, listed(store=tmp_path).out.splitlines())) <= columns


def test_several_ranks_are_told_apart(tmp_path):
    make_traced(tmp_path)
    make_traced(tmp_path, rank=1)
    head, *lines = listed("--step", "0", store=tmp_path).out.splitlines()
    assert head.split()[:2] == ["step", "rank"]
    assert [line.split()[1] for line in lines] == ["0"] * 4 + ["1"] * 4


def test_what_could_not_be_traced_is_told_on_stderr(tmp_path):
    make_traced(tmp_path, gaps=[gap_entry("operations inside compiled code", 2, 0, 1)])
    done = listed(store=tmp_path)
    assert done.code == 0
    assert done.err == "anchor: run1 lacks operations inside compiled code: steps 0-1\n"


def test_a_run_that_was_not_traced_says_how_to_trace_one(tmp_path):
    make_run(tmp_path, [record()])
    done = listed(store=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("anchor: no operation of run1 was traced: ")
    assert "anchor run --trace 0:2" in done.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--grep", "nothing"), "no traced operation of run1 is selected"),
        (("--grep", "("), "--grep '(' is no regular expression"),
        (("--stage", "middle"), "stage is one of forward, recompute"),
        (("--step", "two"), "--step 'two'"),
    ],
)
def test_a_question_that_has_no_answer_is_one_line(tmp_path, options, said):
    make_traced(tmp_path)
    for json in ((), ("--json",)):
        done = listed(*options, *json, store=tmp_path)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert said in done.err


def test_hostile_names_are_escaped(tmp_path):
    make_traced(tmp_path, ops=[traced(HOSTILE, HOSTILE, HOSTILE, where=HOSTILE, args=HOSTILE)])
    done = listed(store=tmp_path)
    assert "\x1b" not in done.out
    assert "\u202e" not in done.out
    assert len(done.out.splitlines()) == 4


def test_a_damaged_log_is_one_line_and_the_names_of_the_run_are_listed(tmp_path):
    make_traced(tmp_path)
    chunk = tmp_path / "run1.zarr" / "rank0" / "ops" / "log" / "c.0"
    data = bytearray(chunk.read_bytes())
    data[20] ^= 1
    chunk.write_bytes(data)
    done = listed(store=tmp_path)
    assert (done.code, done.err.count("\n")) == (3, 1)
    assert anchor("names", "run1", "--store", tmp_path).code == 0
    assert anchor("verify", "run1", "--store", tmp_path).code == 1
