"""Who may call: bearer tokens, and TLS with or without certificates of the clients' own."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from anchorlib.errors import OptionError

__all__ = ["BearerToken", "ServerTLS"]

_HEALTH = "/grpc.health.v1.Health/"


@dataclass(frozen=True, slots=True)
class ServerTLS:
    """Files in PEM form.

    client_ca_file: clients have to show a certificate that this one signed.
    """

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """For the port; OptionError where a file cannot be read."""
        pair = (_read(self.key_file), _read(self.cert_file))
        if self.client_ca_file is None:
            return grpc.ssl_server_credentials([pair])
        return grpc.ssl_server_credentials(
            [pair], root_certificates=_read(self.client_ca_file), require_client_auth=True
        )


class BearerToken(grpc.ServerInterceptor):
    """Refuses every call without `authorization: Bearer <token>`, but for the health service's."""

    def __init__(self, token: str) -> None:
        self._wanted = f"Bearer {token}".encode()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Let the call pass, or answer it in the handler's place."""
        handler = continuation(handler_call_details)
        shown = dict(handler_call_details.invocation_metadata).get("authorization", "")
        held = shown if isinstance(shown, bytes) else shown.encode()
        if handler_call_details.method.startswith(_HEALTH) or hmac.compare_digest(
            held, self._wanted
        ):
            return handler
        return _refusing(handler)


def _refusing(handler: grpc.RpcMethodHandler[Any, Any] | None) -> grpc.RpcMethodHandler[Any, Any]:
    # A client waits for the kind of answer it asked for, so the refusal has to be of that kind.
    if handler is not None and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(_refuse)
    return grpc.unary_unary_rpc_method_handler(_refuse)


def _refuse(request: Any, context: grpc.ServicerContext) -> Any:  # noqa: ARG001  # not looked at
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror or error}") from error
