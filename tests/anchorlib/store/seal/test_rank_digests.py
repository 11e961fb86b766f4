"""Digests of steps: equal where the same was recorded, whatever came first, at any width."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.diagnosis.digest_comparison import first_parting
from anchorlib.reading import open_run
from anchorlib.record import Record
from anchorlib.store.seal import RankDigests, rank_digests, read_digests
from tests.anchorlib.peers.jobs import as_drawn, of_rank
from tests.cli.made import make_run

STEPS = st.dictionaries(st.integers(-3, 40), st.sampled_from("ab"), max_size=12)
MOST = rank_digests.MOST_STRETCHES
WIDTHS = st.sampled_from([1, 2, 4, 64])


def of_steps(told: dict[int, str], width: int = 1) -> RankDigests:
    """Digests in which each step has that of a letter."""
    stretches = {step: 16 * letter.encode() for step, letter in sorted(told.items())}
    return RankDigests(bytes(16), False, 1, stretches).of_width(width)


@given(STEPS, STEPS, WIDTHS, WIDTHS)
def test_digests_of_any_width_tell_where_two_ranks_part(
    a: dict[int, str], b: dict[int, str], width_a: int, width_b: int
) -> None:
    found = first_parting(of_steps(a, width_a), of_steps(b, width_b))
    other = [step for step in {*a, *b} if a.get(step) != b.get(step)]
    if not other:
        assert found is None
        return
    assert found is not None
    assert min(other) in found
    assert len(found) == max(width_a, width_b)


@given(STEPS, WIDTHS, st.integers(2, 8))
def test_digests_read_as_they_were_written(told: dict[int, str], width: int, most: int) -> None:
    one = of_steps(told, width)
    assert read_digests(json.loads(json.dumps(one.document()))) == one
    assert one.bounded(most).bounded(max(most // 2, 2)) == one.bounded(max(most // 2, 2))
    assert len(one.bounded(most + 1).stretches) <= most + 1


@pytest.mark.parametrize(
    "other",
    [
        {"width": 3},
        {"width": 0},
        {"digests": "ab" * 31},
        {"digests": "x"},
        {"outline": ""},
        {"stretches": [[0, 3]]},
        {"stretches": [[0, 1 << 40]]},
        {"stretches": [[0, 1], [0, 1]]},
        {"stretches": [[1, 2], [0, 1]]},
        {"width": 1 << 61},
        {"stretches": [[0, MOST + 1]], "digests": 16 * (MOST + 1) * "ab"},
    ],
    ids=repr,
)
def test_digests_that_are_not_those_of_their_steps_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_digests(of_steps({0: "a", 1: "b"}).document() | other)


def made(store: Path, run: str, records: list[Record]) -> RankDigests:
    """The digests of a rank of these records."""
    make_run(store, records, run)
    return rank_digests.digests_of(open_run(run, store).rows(0)[0])


def test_the_order_of_execution_is_in_the_outline_and_not_in_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = of_rank(0, 3, as_drawn)
    one = made(tmp_path, "run1", records)
    turned = made(tmp_path, "run2", sorted(records, key=lambda each: (each.step, each.name)))
    assert turned.stretches == one.stretches
    assert turned.outline != one.outline
    assert made(tmp_path, "run3", records) == one
    monkeypatch.setattr(rank_digests, "_AT_ONCE", 2)
    assert rank_digests.digests_of(open_run("run1", tmp_path).rows(0)[0]) == one


@pytest.mark.parametrize(
    ("what", "steps", "outline"),
    [
        ({"name": "other"}, {1}, True),
        ({"kind": "delta"}, {1}, True),
        ({"mode": "summary"}, {1}, True),
        ({"dtype": "int32"}, {1}, True),
        ({"scale": 2.0}, set(), True),
        ({"count": 2}, set(), True),
    ],
    ids=repr,
)
def test_everything_that_a_comparison_reads_is_in_steps_or_outline(
    tmp_path: Path, what: dict[str, Any], steps: set[int], outline: bool
) -> None:
    records = of_rank(0, 3, as_drawn)
    changed = [replace(one, **what) if n == 7 else one for n, one in enumerate(records)]
    one, two = made(tmp_path, "run1", records), made(tmp_path, "run2", changed)
    assert {step for step in range(3) if one.stretches[step] != two.stretches[step]} == steps
    assert (one.outline != two.outline) is outline
