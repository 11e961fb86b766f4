"""The table of what a GPU costs is made without a mistake, as far as no GPU is needed."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_table_of_a_gpu_has_its_target_and_all_of_its_lines():
    size = gpu.Size(32, 1, 2, (2, 8), torch.float32, 64 << 20, 1, 2, device="cpu")
    lines = list(gpu.figures(size))
    assert [one.what for one in lines if one.at_most == 1.03] == ["step with `*@grad` / unobserved"]
    assert len({one.what for one in lines}) == len(lines) == 14
