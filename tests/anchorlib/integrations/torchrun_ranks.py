"""A rank that torchrun starts, under DDP: a Trainer, then a loop of Accelerate's.

torchrun --nproc-per-node 2 torchrun_ranks.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
from accelerate import Accelerator

from anchorlib.integrations.accelerate import watch
from anchorlib.integrations.transformers import AnchorCallback
from tests.anchorlib.integrations import transformers_runs as runs

place = Path(sys.argv[1])
store = place / "anchors"
recorder = AnchorCallback("trainer", store=store)
trainer = runs.trainer(runs.made(), place, [recorder], ddp_backend="gloo", eval_strategy="steps")
trainer.train()

accelerator = Accelerator(cpu=True)
net = runs.made()
model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
with watch(accelerator, model, optimizer, run="loop", store=store):
    for one in torch.utils.data.DataLoader(runs.Sums(2), sampler=[accelerator.process_index] * 2):
        accelerator.backward(model(**one)["loss"])
        optimizer.step()
        optimizer.zero_grad()
accelerator.end_training()
