"""A program that trains once for each door, with a thing of another kind there.

    python without.py STORE [--compiled] DOOR ...      for each a line of JSON: what it did and said

It also says whether our modules get the same for such a thing as where there is nothing: then the
training would be the same too.

Each is a fork of this process, which has torch and all else but none of our modules that know it.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import logging
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc  # noqa: F401  # each fork would load it
import torch
import zarr  # noqa: F401  # the same
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import anchorlib
import anchorlib.reading
import anchorlib.recorder
import anchorlib.sinks

OTHER = 7
NONE = "none"  # no door is taken away, and nothing is observed


def take_away(name: str) -> None:
    """Let torch have a thing of another kind under `name` when our modules look for it."""
    package = ModuleType("anchorlib.torch_private")
    package.__path__ = [str(Path(anchorlib.__file__).parent / "torch_private")]
    sys.modules[package.__name__] = package
    door: Any = importlib.import_module("anchorlib.torch_private.door")
    del sys.modules[package.__name__]
    look = door.private

    def private(full: str, *told: Any, **named: Any) -> Any:
        if full != name:
            return look(full, *told, **named)
        gone = look(full, *told, **(named | {"probe": lambda: None}))
        TOLD["gone"] = door.DOORS[full].said
        for moved in door._moved.values():
            moved[:] = [one for one in moved if one.name != full]
        other = look(full, *told, **(named | {"probe": lambda: OTHER}))
        TOLD["same"] = other is gone
        return other

    door.private = private


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        again = checkpoint(self.inside, x, use_reentrant=False)
        return checkpoint(self.norm, torch.relu(again), use_reentrant=True)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.block = Block()
        self.table = nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = anchorlib.anchor(self.block(self.first(x)), "hidden")
        with torch.device("cpu"):
            h = anchorlib.anchor(h * anchorlib.anchor(self.table, "leaf"), "product")
        anchorlib.anchor(h.detach(), "detached")
        anchorlib.anchor(torch.eye(2).to_sparse(), "sparse")
        return h + torch.func.vmap(lambda row: anchorlib.anchor(row.tanh(), "mapped"))(h)


def anchored(x: torch.Tensor) -> torch.Tensor:
    return anchorlib.anchor(x.sin(), "compiled") * 2


def train(*, observed: bool) -> str:
    """Two steps; the digest of all parameters afterwards."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    compiled = torch.compile(anchored, backend="eager") if COMPILED else anchored
    session = None
    if observed:
        session = anchorlib.start(f"run{os.getpid()}", store=STORE, recorder="thread")
        session.watch(model, optimizer=optimizer)
        session.trace(steps=1)
    for _ in range(2):
        with FlopCounterMode(display=False):
            made = model(torch.randn(4, 8))
        loss = anchorlib.anchor(compiled(made).square().mean(), "loss")
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    bits = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    if session is not None:
        session.close()
        TOLD["records"] = session.counters.records
        TOLD["skipped"] = dict(session.counters.skipped)
        run = anchorlib.open_run(session.run, store=session.store)
        TOLD["header"] = dict(run.header())
    return bits.hexdigest()


COMPILED = "--compiled" in sys.argv
STORE = sys.argv[1]
TOLD: dict[str, Any] = {}


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def report(name: str) -> dict[str, Any]:
    heard = _Lines()
    logging.getLogger("anchorlib").addHandler(heard)
    try:
        if name != NONE:
            take_away(name)
        TOLD["bits"] = train(observed=name != NONE)
    except BaseException:  # noqa: BLE001  # the test shows it
        TOLD["raised"] = traceback.format_exc()
    return {"name": name, "said": heard.lines, **TOLD}


def main() -> None:
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # as the first optimizer does
    gc.freeze()  # or the first collection of each child would copy all of it
    for name in sys.argv[2:]:
        if name == "--compiled":
            continue
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            print(json.dumps(report(name), default=str), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
