"""Twelve thousand observed steps: what they leave in memory and in the session, as JSON.

What malloc and Python's allocator have given out is counted, and how many regions are mapped: an
arena that an allocator keeps for later is no leak, and the resident memory cannot tell them apart.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import anchorlib
from anchorlib.capture.sessions.active import open_session
from anchorlib.capture.sessions.settings import StartArguments, settings
from anchorlib.sinks import MemorySink

_STEPS = 12_000
"""Caches of torch and numpy fill for some six thousand, by 50 bytes a step and ever less."""
_STEPS_BETWEEN = 1_500
_CACHED_BY_NUMPY = 1024
"""Bytes: of each smaller size numpy keeps up to seven freed blocks, which malloc calls in use."""


class Nowhere(MemorySink):
    """A sink that forgets."""

    def put(self, block):
        pass


class Given(ctypes.Structure):
    """What `mallinfo2` of glibc returns; `hblkhd` is mapped by malloc, `uordblks` is the rest."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks")),
        ("keepcost", ctypes.c_size_t),
    )


_LIBC = ctypes.CDLL(None)
_LIBC.mallinfo2.restype = Given


def in_use():
    """Bytes that malloc has given out, blocks that Python has, and mapped regions."""
    given = _LIBC.mallinfo2()
    regions = len(Path("/proc/self/maps").read_text().splitlines())
    return given.hblkhd + given.uordblks, sys.getallocatedblocks(), regions


def fill_the_cache_of_numpy():
    """Let numpy keep what it ever keeps, which else grows for tens of thousands of steps."""
    for size in range(1, _CACHED_BY_NUMPY + 1):
        blocks = [np.empty(size, np.uint8) for _ in range(8)]
        del blocks


def soak():
    fill_the_cache_of_numpy()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    session = open_session(settings(StartArguments("soak")), Nowhere())
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
                marks.append(in_use())
        streams = len(session._recorder._table._streams)
        handles = len(session._observer._hook_handles)
    return {
        "in_use": marks,
        "steps_between": _STEPS_BETWEEN,
        "records": session.counters.records,
        "skipped": len(session.counters.skipped),
        "streams": streams,
        "handles": handles,
    }


if __name__ == "__main__":
    print(json.dumps(soak()))
