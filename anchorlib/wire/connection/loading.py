"""Imports gRPC in such a way that it writes nothing to the program's stderr.

gRPC's C core writes a line for each connection that fails: a trainer with a wrong certificate would
see one every second. anchorlib reports the failed call itself, once and in a sentence. The core
reads GRPC_VERBOSITY only while it is loaded: a program that sets the variable, or that loaded gRPC
before, keeps its own setting.
"""

from __future__ import annotations

import os

__all__ = ["grpc"]

_GIVEN = os.environ.get("GRPC_VERBOSITY")
os.environ["GRPC_VERBOSITY"] = _GIVEN or "ERROR"

import grpc  # noqa: E402  # loaded here alone

if _GIVEN is None:
    del os.environ["GRPC_VERBOSITY"]  # processes that this one starts choose for themselves
