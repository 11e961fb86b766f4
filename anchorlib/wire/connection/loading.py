"""Imports gRPC in such a way that it leaves the program's stderr and its forks alone.

gRPC's C core writes a line for each connection that fails: a trainer with a wrong certificate would
see one every second. anchorlib reports the failed call itself, once and in a sentence.

gRPC also starts threads anew in a process that was forked, such as a worker of a DataLoader. That
can abort the worker: it happened in 5 of 36 trainings that forked 20 workers beside a session with
a collector. A forked process of ours makes no call, so that it needs none of these threads.

Both behaviours are switched off by environment variables, which gRPC reads only while it is loaded.
A program that sets these variables itself, or that loaded gRPC before, keeps its own settings.
"""

from __future__ import annotations

import os

__all__ = ["grpc"]

_OURS = {"GRPC_VERBOSITY": "ERROR", "GRPC_ENABLE_FORK_SUPPORT": "0"}
_GIVEN = {name: os.environ.get(name) for name in _OURS}
os.environ.update({name: _GIVEN[name] or setting for name, setting in _OURS.items()})

import grpc  # noqa: E402  # loaded here alone

for _name, _given in _GIVEN.items():  # processes that this one starts choose for themselves
    if _given is None:
        del os.environ[_name]
    else:
        os.environ[_name] = _given
