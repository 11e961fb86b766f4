"""Twenty thousand observed steps: what they leave in memory and in the session, as JSON."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import torch
from torch import nn

import anchorlib
from anchorlib.capture.sessions.active import open_session
from anchorlib.capture.sessions.settings import Options, settings
from anchorlib.sinks import MemorySink

_STEPS = 20_000
_STEPS_BETWEEN = 2500


class Nowhere(MemorySink):
    """A sink that forgets."""

    def put(self, block):
        pass


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def soak():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    session = open_session(settings(Options("soak")), Nowhere())
    marks = []
    with session:
        session.watch(model, tensors=["?"], optimizer=optimizer)
        x = torch.randn(4, 8)
        for step in range(_STEPS):
            h = model(x)
            for n in range(10):
                anchorlib.anchor(h, f"h{n}")
            optimizer.zero_grad()
            h.sum().backward()
            optimizer.step()
            if step % _STEPS_BETWEEN == _STEPS_BETWEEN - 1:
                session.flush()
                gc.collect()
                marks.append(resident_bytes())
        streams = len(session._recorder._streams)
        handles = len(session._observer._hung)
    return {
        "resident": marks,
        "steps_between": _STEPS_BETWEEN,
        "records": session.counters.records,
        "skipped": len(session.counters.skipped),
        "streams": streams,
        "handles": handles,
    }


if __name__ == "__main__":
    print(json.dumps(soak()))
