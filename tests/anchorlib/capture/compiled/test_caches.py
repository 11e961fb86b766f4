"""Compiled code from torch's caches, in a second process."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.warm import warm_python

SCRIPT = """
import json, sys, torch
from torch import nn
from torch._dynamo.utils import counters
from anchorlib import EveryN, anchor
from tests.anchorlib.capture.compiled.observing import X, observed, record, weight

def function(x, w):
    h = torch.tanh(x @ w)
    for _ in range(2):
        h = torch.sin(h * 2)
        anchor(h, "h")
    anchor(w, "w", EveryN(2))
    return h.sum()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
    def forward(self, x):
        return torch.tanh(self.fc(x))

def watched(_, session):
    torch.manual_seed(0)
    model = torch.compile(Model(), fullgraph=True)
    session.watch(model)
    for _ in range(2):
        model(X).sum().backward()
        session.step()

found = []
for run in (record(torch.compile(function, fullgraph=True)), record(None, watched)):
    for place, arrays in observed(run).items():
        found.append([*place, [array.tolist() for array in arrays]])
hits = counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"]
misses = counters["aot_autograd"]["autograd_cache_miss"]
print(json.dumps({"hits": hits, "misses": misses, "found": found}))
"""


def run_script(cache: Path) -> dict:
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [warm_python(), "-c", SCRIPT],
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": str(root),
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_a_second_process_records_the_same_from_the_cache(tmp_path):
    cold, warm = run_script(tmp_path), run_script(tmp_path)
    assert cold["misses"]
    assert warm["hits"]
    assert not warm["misses"]
    assert warm["found"] == cold["found"]
    assert {(name, kind) for name, kind, *_ in cold["found"]} >= {
        ("h", "value"),
        ("h", "grad"),
        ("w", "grad"),
        ("fc", "grad"),
        ("output", "value"),
    }
