"""Asks a collector, through gRPC's standard health service, whether it is serving."""

from __future__ import annotations

import time

from anchorlib.wire.address import Address
from anchorlib.wire.connection import Failure, FailureKind, failure, grpc, open_channel
from anchorlib.wire.credentials import Credentials

__all__ = ["ask_health"]


def ask_health(address: Address, *, timeout: float = 5.0) -> tuple[str, float]:
    """Return a collector's state ("SERVING", "NOT_SERVING"), and how many seconds a call takes.

    A first call connects; only the second call is timed. Each takes at most `timeout` seconds.
    The credentials are those in the environment variables. Raises CollectorError if the collector
    does not answer or refuses, OptionError for credentials that cannot or must not be shown to the
    collector.
    """
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    credentials = Credentials.from_environment()
    with open_channel(address, credentials) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        question = health_pb2.HealthCheckRequest()
        try:
            stub.Check(question, timeout=timeout, metadata=credentials.metadata)
            began = time.perf_counter()
            reply = stub.Check(question, timeout=timeout, metadata=credentials.metadata)
        except grpc.RpcError as error:
            raise failure(address, error).error() from None
        took = time.perf_counter() - began
    if reply is None:  # a damaged line may lose the message and keep the status
        sentence = f"what {address} answers is damaged on the way: look after the line"
        raise Failure(FailureKind.DAMAGED, sentence).error()
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)), took
