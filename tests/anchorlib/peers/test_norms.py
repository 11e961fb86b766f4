"""Norms of ranks with other data each: what is found of planted faults, on cases held out."""

from __future__ import annotations

import pytest

from tests.anchorlib.peers.planted import BENIGN, JUMPS, score

FIRST, STOP = 18, 27
WILD = "data, a factor of e"


@pytest.mark.slow
def test_norms_name_planted_jumps_and_raise_no_false_alarm_on_cases_held_out():
    table = score(FIRST, STOP)
    assert [table[f"{kind}: no fault"][0] for kind in BENIGN] == [0] * len(BENIGN)
    missed = [
        (kind, fault, table[f"{kind}: jumped {fault}"])
        for kind in BENIGN
        for fault in JUMPS
        if table[f"{kind}: jumped {fault}"] != (9, 9)
    ]
    assert missed == [
        ("data, 30 %", "8 times", (7, 9)),
        (WILD, "8 times", (0, 9)),
        (WILD, "64 times", (0, 9)),
        (WILD, "a 64th", (0, 9)),
    ]
    for kind in ("data, 5 %", "data, 30 %", "heavy tails", "rows of one rank"):
        assert table[f"{kind}: raised twice"] == (9, 9)
