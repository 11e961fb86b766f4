"""Observations that come out of order are taken in program order, and none is lost."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.capture.compiled.program_order import Lines

SITES = [3, 5, 8, 13]


def taken(arrivals):
    lines, order = Lines(), []
    for number, site in enumerate(arrivals):
        x = torch.tensor([site, number])
        lines.take("name", SITES, site, x, lambda x: order.append(tuple(x.tolist())))
        x.zero_()  # what waits is a copy
    lines.settle()
    return order


@given(st.permutations(SITES), st.permutations(SITES))
def test_each_execution_is_taken_in_program_order(first, second):
    order = taken([*first, *second])
    assert [site for site, _ in order] == SITES * 2
    assert {number for _, number in order[:4]} == {0, 1, 2, 3}


@given(st.lists(st.sampled_from(SITES), max_size=20))
def test_nothing_is_lost_and_nothing_invented(arrivals):
    order = taken(arrivals)
    assert sorted(number for _, number in order) == list(range(len(arrivals)))
    assert all(arrivals[number] == site for site, number in order)


@given(st.lists(st.sampled_from(SITES), unique=True))
def test_what_never_comes_holds_the_rest_up_no_longer_than_the_step(arrivals):
    assert [site for site, _ in taken(arrivals)] == sorted(arrivals)
