"""Compiled code from torch's caches, in a second process."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.warm import warm_python

SCRIPT = """
import json, os, torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import compile_fx
from anchorlib import EveryN, anchor
from tests.anchorlib.capture.compiled.observing import X, observed, record

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.w = nn.Parameter(torch.ones(2, 5))
    def forward(self, x):
        h = torch.tanh(self.fc(x) @ self.w)
        for _ in range(2):
            h = torch.sin(h * 2)
            anchor(h, "h")
        anchor(self.w, "w", EveryN(2))
        return h

def watched(_, session):
    torch.manual_seed(0)
    model = torch.compile(Model(), fullgraph=True)
    session.watch(model)
    for _ in range(2):
        model(X).sum().backward()
        session.step()

def told():
    run = record(None, watched)
    found = [
        [*place, [array.tolist() for array in arrays]] for place, arrays in observed(run).items()
    ]
    cached = counters["aot_autograd"]["autograd_cache_hit"]
    cached += counters["inductor"]["fxgraph_cache_hit"]
    misses = counters["aot_autograd"]["autograd_cache_miss"]
    return {"hits": cached, "misses": misses, "found": found}

for _ in range(2):  # the compilers are loaded, and each process compiles for itself
    child = os.fork()
    if child == 0:
        print(json.dumps(told()), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def run_processes(cache: Path) -> list[dict]:
    """What two processes, one after the other, recorded with a cache that was empty."""
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
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_second_process_records_the_same_from_the_cache(tmp_path):
    cold, warm = run_processes(tmp_path)
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
