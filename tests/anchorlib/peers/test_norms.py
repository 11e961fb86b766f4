"""Norms of ranks with other data each: what is found of planted faults, on cases held out."""

from __future__ import annotations

import pytest

from tests.anchorlib.peers.planted import BENIGN, JUMPS, score

FIRST = 18
WILD = "data, a factor of e"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "missed_seldom"),
    [
        (20, {}),
        pytest.param(27, {("data, 30 %", "8 times"): (7, 9)}, marks=pytest.mark.long),
    ],
)
def test_norms_name_planted_jumps_and_raise_no_false_alarm_on_cases_held_out(stop, missed_seldom):
    table, cases = score(FIRST, stop), stop - FIRST
    assert [table[f"{kind}: no fault"] for kind in BENIGN] == [(0, cases)] * len(BENIGN)
    missed = {
        (kind, fault): table[f"{kind}: jumped {fault}"]
        for kind in BENIGN
        for fault in JUMPS
        if table[f"{kind}: jumped {fault}"] != (cases, cases)
    }
    small = [fault for fault in JUMPS if fault != "an exponent bit"]
    assert missed == missed_seldom | {(WILD, fault): (0, cases) for fault in small}
    for kind in ("data, 5 %", "data, 30 %", "heavy tails", "rows of one rank"):
        assert table[f"{kind}: raised twice"] == (cases, cases)
