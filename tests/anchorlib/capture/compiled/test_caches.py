"""Compiled code from torch's caches, in a second process: the cache is asked by a graph's text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import warm_python

MODEL = """
import json, os, torch
from torch import nn
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

def train(session, **options):
    torch.manual_seed(0)
    model = torch.compile(Model(), fullgraph=True, **options)
    session.watch(model)
    for _ in range(2):
        model(X).sum().backward()
        session.step()
"""

CACHED = """
from torch._dynamo.utils import counters
from torch._inductor import compile_fx

def told():
    run = record(None, lambda _, session: train(session))
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


TRACED = """
def shown(graph, _):
    print(graph.code)
    return graph.forward

record(None, lambda _, session: train(session, backend=shown))
"""


def run_script(python: str, script: str, **environment: str) -> str:
    """What a process printed that has the model."""
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [python, "-c", MODEL + script],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def run_processes(cache: Path) -> list[dict]:
    """What two processes, one after the other, recorded with a cache that was empty."""
    threads = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    said = run_script(warm_python(), CACHED, TORCHINDUCTOR_CACHE_DIR=str(cache), **threads)
    return [json.loads(line) for line in said.splitlines()]


@pytest.mark.long
def test_each_process_has_the_same_graph():
    # Processes that are forked would share what the import of anchorlib chose, and hashes.
    graphs = {run_script(sys.executable, TRACED, PYTHONHASHSEED=seed) for seed in "12"}
    (graph,) = graphs
    assert graph.count("torch.ops.anchorlib.") > 4


@pytest.mark.long
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
