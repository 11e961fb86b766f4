"""Where two runs part in what their headers tell step by step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from anchorlib.diagnosis.causes import drawn_otherwise, partings, partings_of


def history(points: Any, until: int) -> dict[str, Any]:
    return {"points": points, "until": until}


def aligned(a: Any, b: Any, *, key: str = "history.optimizer.lr", offset: int = 0, **both: Any):
    """What is looked at of an alignment: two headers."""
    one, two = (SimpleNamespace(header={0: {key: told, **both}}) for told in (a, b))
    return SimpleNamespace(a=one, b=two, step_offset=offset)


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        (history([[0, 0.1]], 9), history([[0, 0.1]], 9), None),
        (history([[0, 0.1]], 9), history([[0, 0.1], [4, 0.2]], 9), (4, 0.1, 0.2)),
        (history([[0, 0.1], [4, 0.2]], 9), history([[0, 0.1]], 9), (4, 0.2, 0.1)),
        (history([[0, 0.1]], 9), history([[0, 0.2]], 9), (0, 0.1, 0.2)),
        # Beyond what one of them knows nothing is said.
        (history([[0, 0.1]], 3), history([[0, 0.1], [4, 0.2]], 9), None),
        # A run that was resumed, or recorded late, is compared from where both are known.
        (history([[5, 0.1]], 9), history([[0, 0.3], [3, 0.1]], 9), None),
        (history([[5, 0.1]], 9), history([[0, 0.3]], 9), (5, 0.1, 0.3)),
    ],
)
def test_histories_part_at_the_first_step_that_both_know_and_say_otherwise(a, b, found):
    told = partings(aligned(a, b))
    assert [one[1:4] for one in told] == ([] if found is None else [found])
    assert all(one.name == "optimizer.lr" for one in told)


def test_a_schedule_that_parts_on_a_later_rank_alone_is_told_of_that_rank():
    key, fine, wrong = "history.optimizer.lr", history([[0, 0.1]], 9), history([[0, 0.11]], 9)
    one, two = (SimpleNamespace(header={0: {key: fine}, 1: {key: told}}) for told in (fine, wrong))
    both = SimpleNamespace(a=one, b=two, step_offset=0)
    assert [tuple(parting) for parting in partings(both)] == [("optimizer.lr", 0, 0.1, 0.11, 1)]
    assert partings_of(both, 0) == []
    assert partings_of(both, 1) == partings(both)


def test_steps_are_counted_as_a_counts_them():
    a, b = history([[0, 1], [4, 2]], 9), history([[3, 1], [8, 2]], 12)
    assert partings(aligned(a, b, offset=3))[0].step == 4
    assert partings(aligned(a, history([[3, 1], [7, 2]], 12), offset=3)) == []


@pytest.mark.parametrize(
    "told", [None, 3, {}, history([], 3), history([[3, 1], [1, 2]], 4), history([[1]], 4), "points"]
)
def test_what_is_no_history_says_nothing(told):
    fine = history([[0, 1]], 9)
    assert partings(aligned(told, fine)) == partings(aligned(fine, told)) == []


def test_the_random_state_is_told_where_seeds_are_equal():
    a, b = history([[0, "x"], [1, "y"]], 5), history([[0, "x"], [1, "z"]], 5)
    key, seed = "history.random.pass1", {"torch.initial_seed": 0}
    assert drawn_otherwise(aligned(a, b, key=key, **seed)) == 1
    assert drawn_otherwise(aligned(a, a, key=key, **seed)) is None
    assert partings(aligned(a, b, key=key)) == []
    other = aligned(a, b, key=key, **seed)
    other.b.header[0]["torch.initial_seed"] = 1
    assert drawn_otherwise(other) is None
