"""Two ranks that torchrun starts: names without wrappers, ranks as the framework counts them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import anchorlib
from tests.anchorlib.integrations.consumed import where
from tests.warm import warm_python


@pytest.fixture
def store(tmp_path):
    """Where a Trainer's run and a run of Accelerate's were recorded by two ranks."""
    script = Path(__file__).with_name("torchrun_ranks.py")
    speaking = ("ANCHOR_", "TORCHELASTIC_", "SLURM_", "RANK", "WORLD_SIZE")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(speaking)}
    python = warm_python("accelerate", "transformers")
    command = [python, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(script), str(tmp_path)],
        env={**clean, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()
    return tmp_path / "anchors"


@pytest.mark.long
def test_the_ranks_of_a_wrapped_model_record_its_own_names(store):
    for name, steps in {"trainer": 4, "loop": 2}.items():
        run = anchorlib.open_run(name, store)
        assert run.ranks == [0, 1]
        modules, parameters = {"fc1", "fc2"}, {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
        outputs = {"output:loss", "output:logits"}
        assert {one.name for one in run.tensors()} == {"loss"} | modules | parameters | outputs
        trained = [("train", step, 0, 0) for step in range(steps)]
        for rank in run.ranks:
            assert where(run, "fc1", "grad", rank=rank) == trained
        local, consumed = (
            [run.series(name, "grad", rank=rank).values() for rank in run.ranks]
            for name in ("fc1", "fc1.weight")
        )
        assert not np.array_equal(*local)
        np.testing.assert_array_equal(*consumed)  # DDP's average
