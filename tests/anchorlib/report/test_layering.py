"""Rows of a small graph: makers above, and no edge through a node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anchorlib.report.layering import rows


@st.composite
def graphs(draw):
    count = draw(st.integers(0, 12))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20)) if pairs else []
    return count, edges


@given(graphs())
def test_every_edge_leads_down_and_has_a_place_in_each_row_that_it_crosses(graph):
    count, edges = graph
    found = rows(count, edges)
    row_of = {one: number for number, row in enumerate(found) for one in row}
    assert sorted(one for one in row_of if one >= 0) == list(range(count))
    assert all(len({*row}) == len(row) for row in found)
    for number, (maker, taker) in enumerate(edges):
        crossed = range(row_of[maker] + 1, row_of[taker])
        assert row_of[maker] < row_of[taker]
        assert [n for n, row in enumerate(found) if -1 - number in row] == list(crossed)


def test_makers_stand_in_the_order_of_inputs():
    assert rows(3, [(0, 2), (1, 2)]) == [[0, 1], [2]]
    assert rows(3, [(1, 2), (0, 2)]) == [[1, 0], [2]]


def test_an_edge_over_a_row_passes_beside_its_nodes():
    assert rows(3, [(0, 1), (1, 2), (0, 2)]) == [[0], [1, -3], [2]]
