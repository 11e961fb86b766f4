"""Collectors in virtual time: what a queue must do, whatever its costs."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fleet import Costs, Job, Prices, demand, job_of, simulated

COSTS = Costs(stream=0.05, series=0.001, batch=0.0003, record=1e-5, byte=2e-9)


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 20), st.floats(0.001, 5))
def test_no_work_is_lost_and_none_is_done_twice(ranks, collectors, steps, step_s):
    job = Job(ranks, step_s, series=50, records=50, value_bytes=1e5)
    found = simulated(job, COSTS, collectors, steps)
    work = ranks * (COSTS.start(job) + steps * COSTS.step(job))
    assert found.busy * found.ends * collectors == pytest.approx(work)
    assert found.ends >= max(steps * step_s, work / collectors)
    assert found.busy <= 1
    assert found.lag[0] <= found.lag[1] <= found.lag[2]


def test_a_burst_ends_when_the_work_of_the_fullest_collector_does():
    job = Job(9, 1e-9, series=10, records=10)
    one = COSTS.start(job) + 5 * COSTS.step(job)
    assert simulated(job, COSTS, 4, 5).ends == pytest.approx(3 * one)


def test_too_few_collectors_never_catch_up_and_enough_do():
    job = Job(64, 1.0, series=1000, records=20_000)
    assert 64 * COSTS.step(job) > 1
    assert simulated(job, COSTS, 1, 60).started == inf
    assert simulated(job, COSTS, demand(job, COSTS, Prices()).collectors, 120).started < 60


def test_the_arithmetic_of_seven_billion_parameters():
    job = job_of(6.7e9, layers=32, ranks=1024, step_s=2.0, what="gradients")
    found = demand(job, COSTS, Prices(gb_month=1.0, put=0.0, hour=0.0))
    assert job.records == 291
    assert found.records_s == pytest.approx(1024 * 291 / 2)
    values = 2 * 6.7e9 / 2.0  # two bytes a parameter, all shards together, each step
    assert values < found.bytes_s < 1.02 * values
    assert found.day_bytes == pytest.approx(found.bytes_s * 86_400)
    assert found.money == pytest.approx(found.day_bytes / 1e9)
