"""Ranks that start together make one run, and nobody takes away what another has put there."""

from __future__ import annotations

import threading

import pytest

from anchorlib.store import RunReader, Writer, find_run


@pytest.mark.parametrize("attempt", range(20))
def test_ranks_that_open_one_new_run_at_once_all_stay(tmp_path, attempt):
    start = threading.Barrier(4)
    faults = []

    def open_rank(rank):
        start.wait(5)
        try:
            Writer.open(tmp_path, "run1", rank).close()
        except Exception as fault:  # noqa: BLE001 - whatever a thread meets is shown below
            faults.append(fault)

    ranks = [threading.Thread(target=open_rank, args=(rank,)) for rank in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert not faults
    found = find_run("run1", tmp_path)
    reader = RunReader(found.location, found.name)
    reader.refresh()
    assert reader.ranks == [0, 1, 2, 3]
