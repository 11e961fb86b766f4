"""Which runs go: laws that hold for any runs and limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.upkeep import RetentionLimits, RunFacts, chosen

FACTS = st.builds(
    RunFacts,
    run=st.integers(0, 10_000).map(str),
    closed=st.booleans(),
    written=st.booleans(),
    bytes=st.integers(1, 100),
    written_ns=st.integers(1, 50),
)
RUNS = st.lists(FACTS, max_size=12, unique_by=lambda one: one.run)
LIMITS = st.builds(
    RetentionLimits,
    before_ns=st.none() | st.integers(1, 60),
    keep_last=st.none() | st.integers(0, 5),
    max_bytes=st.none() | st.integers(0, 400),
)


@pytest.mark.slow
@given(RUNS, LIMITS)
def test_what_is_written_neither_goes_nor_counts(
    runs: list[RunFacts], limits: RetentionLimits
) -> None:
    going = chosen(runs, limits)
    assert not [run for run in going if run.written]
    assert going == chosen([run for run in runs if not run.written], limits)


@given(RUNS, RUNS, LIMITS)
def test_links_neither_go_nor_count(
    runs: list[RunFacts], links: list[RunFacts], limits: RetentionLimits
) -> None:
    beside = [replace(one, run=f"link{one.run}", bytes=0) for one in links]
    assert chosen([*runs, *beside], limits) == chosen(runs, limits)


@pytest.mark.slow
@given(RUNS, LIMITS, st.integers(0, 5))
def test_the_newest_closed_runs_stay(
    runs: list[RunFacts], limits: RetentionLimits, keep: int
) -> None:
    limits = replace(limits, keep_last=keep)
    going = {run.run for run in chosen(runs, limits)}
    closed = [run for run in runs if run.closed and not run.written]
    stay = [run for run in closed if run.run not in going]
    assert len(stay) >= min(keep, len(closed))
    newest = sorted(closed, key=lambda run: run.written_ns)[-keep:] if keep else []
    assert not going & {run.run for run in newest}


@given(RUNS, LIMITS)
def test_a_run_that_was_never_closed_goes_by_its_age_alone(
    runs: list[RunFacts], limits: RetentionLimits
) -> None:
    for run in chosen(runs, limits):
        if not run.closed:
            assert limits.before_ns is not None
            assert run.written_ns < limits.before_ns


@given(RUNS, st.integers(0, 400))
def test_as_few_of_the_oldest_go_as_make_the_rest_fit(runs: list[RunFacts], most: int) -> None:
    going = chosen(runs, RetentionLimits(max_bytes=most))
    idle = [run for run in runs if not run.written]
    stay = [run for run in idle if run not in going]
    assert sum(run.bytes for run in stay) <= most or not any(run.closed for run in stay)
    if going:
        assert sum(run.bytes for run in [*stay, going[-1]]) > most


def test_age_and_number_together_keep_the_newest_however_old() -> None:
    runs = [RunFacts(str(age), True, False, 1, 100 - age) for age in range(10)]
    both = chosen(runs, RetentionLimits(before_ns=200, keep_last=3))
    assert [run.run for run in both] == ["9", "8", "7", "6", "5", "4", "3"]
    assert [run.run for run in chosen(runs, RetentionLimits(keep_last=8))] == ["9", "8"]
    assert chosen(runs, RetentionLimits()) == []
