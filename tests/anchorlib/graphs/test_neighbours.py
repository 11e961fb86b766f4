"""The operations around one: few of them, the nearest."""

from __future__ import annotations

from anchorlib.graphs import ops_around
from anchorlib.operations import op_key
from tests.anchorlib.graphs.made import made, operand


def chain(count):
    return [made(n, f"aten.op{n}.x", producers=(n - 1 if n else None,)) for n in range(count)]


def test_what_lies_around_an_operation_is_what_made_its_inputs_and_what_takes_its_outputs():
    ops = chain(6)
    ops[4] = made(4, "aten.two.x", inputs=(operand(), operand()), producers=(3, 0))
    assert [op.index for op in ops_around(ops, ops[4])] == [0, 1, 2, 3, 4, 5]
    assert [op.index for op in ops_around(ops, ops[1])] == [0, 1, 2]


def test_a_dozen_at_most_the_nearest():
    ops = chain(40)
    ops += [made(40 + n, "aten.taker.x", producers=(39,)) for n in range(9)]
    assert [op.index for op in ops_around(ops, ops[39])] == [36, 37, 38, 39, 40, 41, 42]
    every = {op_key(op): "differs" for op in ops}
    assert [op.index for op in ops_around(ops, ops[39], every)] == [*range(31, 40), 40, 41, 42]


def test_what_differs_is_near_however_many_it_is():
    ops = chain(20)
    parting = {op_key(op): "differs" for op in ops[15:]}
    assert [op.index for op in ops_around(ops, ops[19], parting)] == list(range(12, 20))


def test_views_and_makers_that_came_later_are_left_out():
    ops = [
        made(0, "aten.t.default", view=True),
        made(1, "aten.mm.default", producers=(2,)),
        made(2, "aten.tanh.default", producers=(0,)),
        made(3, "aten.detach.default", view=True, producers=(2,)),
    ]
    assert [op.index for op in ops_around(ops, ops[1])] == [1]
    assert [op.index for op in ops_around(ops, ops[2])] == [2]
