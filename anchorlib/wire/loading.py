"""gRPC, loaded so that it leaves the program's stderr alone.

Its C core writes a line of its own for each connection that fails, which for a trainer with a wrong
certificate is a line every other moment. What failed reaches us as an error and is told once, in a
sentence. The core reads GRPC_VERBOSITY when it is loaded and never again: a program that sets the
variable, or that loaded gRPC before, keeps what it has.
"""

from __future__ import annotations

import os

__all__ = ["grpc"]

_GIVEN = os.environ.get("GRPC_VERBOSITY")
os.environ["GRPC_VERBOSITY"] = _GIVEN or "ERROR"

import grpc  # noqa: E402  # loaded here alone

if _GIVEN is None:
    del os.environ["GRPC_VERBOSITY"]  # what this process starts decides for itself
