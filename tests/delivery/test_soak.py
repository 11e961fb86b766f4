"""A short soak, and the law of growth that a long one is judged by."""

from __future__ import annotations

import os

import pytest

from tests.delivery.soak import Soak
from tests.delivery.vitals import Vitals, Watch


@pytest.mark.long
def test_ranks_come_go_die_and_resume_beside_reloads_and_removals(tmp_path):
    soak = Soak(tmp_path, minutes=0.1, ranks=16, seed=3)
    assert soak.run(), soak.laws()
    assert soak.outcome.events["runs removed"] > 0


def test_growth_is_the_most_since_it_was_warm_by_the_most_before():
    watch = Watch(os.getpid(), 1.0)
    watch.seen = [Vitals(memory, 5, 5) for memory in (10, 40, 30, 20, 50, 60, 30, 30, 30, 30)]
    assert (watch.growth("memory", 0.4), watch.growth("threads", 0.4)) == (1.5, 1.0)
