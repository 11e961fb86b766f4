"""Who writes now, as a collector keeps it in memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchor_server.stream_registry import PACE_SECONDS, StreamEntry, StreamRegistry


def at(patch: pytest.MonkeyPatch, seconds: float) -> None:
    patch.setattr("anchor_server.stream_registry.time.monotonic", lambda: seconds)


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 9)), max_size=40))
def test_rates_are_of_the_last_minute_and_hold_no_more_than_that(stored):
    with pytest.MonkeyPatch.context() as patch:
        at(patch, 0.0)
        seat, now = StreamEntry("run1", 0, "node7", 0), 0.0
        for pause, records in stored:
            now += pause
            at(patch, now)
            seat.store(records, 4 * records, 0)
        found = seat.state()
        at(patch, now + PACE_SECONDS + 1)
        later = seat.state()
    times = [sum(pause for pause, _ in stored[: end + 1]) for end in range(len(stored))]
    span = min(max(now, 1.0), PACE_SECONDS)
    # Whole seconds are counted: one that began before the minute did is left out.
    most = sum(n for (_, n), t in zip(stored, times, strict=True) if t >= now - PACE_SECONDS)
    least = sum(n for (_, n), t in zip(stored, times, strict=True) if t >= now - PACE_SECONDS + 1)
    assert least <= found.records_per_second * span + 1e-6
    assert found.records_per_second * span <= most + 1e-6
    assert found.bytes_per_second == pytest.approx(4 * found.records_per_second)
    assert found.committed == sum(records for _, records in stored)
    assert (later.records_per_second, later.bytes_per_second) == (0, 0)


def test_a_clock_that_is_ahead_makes_no_negative_lag_and_a_liar_no_negative_backlog():
    seat = StreamEntry("run1", 0, "node7", 10)
    seat.store(5, 20, (1 << 63) - 1)
    seat.tell_end(3)
    assert (seat.state().lag, seat.state().backlog) == (0, 0)


def test_a_seat_is_free_again_however_its_stream_ends():
    roster = StreamRegistry()

    def breaks() -> None:
        with roster.seat("b", 0, "node7", 0), roster.seat("a", 1, "node7", 0):
            with roster.seat("a", 0, "node7", 0):
                found.extend((one.run, one.rank) for one in roster.states())
            raise RuntimeError

    found: list[tuple[str, int]] = []
    with pytest.raises(RuntimeError):
        breaks()
    assert found == [("a", 0), ("a", 1), ("b", 0)]
    assert roster.states() == []


def test_what_a_minute_costs_is_bounded_however_often_something_is_stored(monkeypatch):
    seat = StreamEntry("run1", 0, "node7", 0)
    for tick in range(2000):
        at(monkeypatch, tick / 10)
        seat.store(1, 4, 0)
    assert len(seat._pace._sums) <= PACE_SECONDS + 1
