"""Where the losses of two runs of several ranks part."""

from __future__ import annotations

import anchorlib
from anchorlib.store import Writer
from tests.anchorlib.store.records import floats, record
from tests.writing import put


def test_of_several_ranks_the_one_whose_loss_differs_first_says_where_the_losses_part(tmp_path):
    """One rank goes wrong; the others follow through what they reduce, later and by less."""
    apart = {0: {3: 1e-5}, 1: {1: 0.5, 2: 0.5, 3: 0.5}}
    for run, there in (("a", {}), ("b", apart)):
        for rank in (0, 1):
            writer = Writer.open(tmp_path, run, rank)
            for step in range(4):
                loss = floats(2 + there.get(rank, {}).get(step, 0))
                put(writer, [record("loss", step, loss, kind="value")])
            writer.close()
    found = anchorlib.compare("a", "b", store=tmp_path).losses
    assert (found.first_bit, found.above_1e6, found.above_1e3) == (1, 1, 1)
