"""A training that failed leaves nothing that another training of the file would meet."""

from __future__ import annotations

import pytest
import torch

import anchorlib
from tests.once import Once


def train(how, run, store):
    with anchorlib.start(run, store=store):
        anchorlib.anchor(torch.full((2,), how), "x")
        if how < 0:
            raise RuntimeError("this training fails")


def test_a_training_is_recorded_once_and_none_meets_what_a_failed_one_left(tmp_path):
    once = Once(train, tmp_path)
    with pytest.raises(RuntimeError, match="this training fails"):
        once(-1.0)
    found = {how: once(how)["x@value"].values().tolist() for how in (1.0, 2.0)}
    assert found == {1.0: [[1.0, 1.0]], 2.0: [[2.0, 2.0]]}
    assert len(list(tmp_path.iterdir())) == 3
