"""Who may call: bearer tokens, and TLS with or without certificates of the clients' own."""

from __future__ import annotations

import hmac
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from anchor_server.refusals import Refusal, abort
from anchorlib.errors import OptionError
from anchorlib.wire import Kind

__all__ = ["BearerToken", "ServerTLS"]

_log = logging.getLogger("anchor_server")

_PROBE = "/grpc.health.v1.Health/Check"  # Watch would hold a call for whoever asks


@dataclass(frozen=True, slots=True)
class ServerTLS:
    """Files in PEM form.

    client_ca_file: clients have to show a certificate that this one signed.
    """

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """For the port; OptionError where a file cannot be read, or is not what it should be."""
        pair = (_read(self.key_file), _read(self.cert_file))
        self._check()
        if self.client_ca_file is None:
            return grpc.ssl_server_credentials([pair])
        return grpc.ssl_server_credentials(
            [pair], root_certificates=_read(self.client_ca_file), require_client_auth=True
        )

    def _check(self) -> None:
        # gRPC would say only that the port cannot be had.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        file = self.cert_file
        try:
            context.load_cert_chain(file, self.key_file, lambda: "")  # nobody is there to be asked
            if self.client_ca_file is not None:
                file = self.client_ca_file
                _read(file)
                context.load_verify_locations(file)
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or "no PEM file"
            raise OptionError(
                f"{file} cannot be used: {reason}; it has to be a certificate in PEM form"
                + ("" if file is self.client_ca_file else f" for the key in {self.key_file}")
            ) from None


class BearerToken(grpc.ServerInterceptor):
    """Refuses every call without `authorization: Bearer <token>`, but for a health check."""

    def __init__(self, token: str) -> None:
        self._wanted = f"Bearer {token}".encode()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Let the call pass, or answer it in the handler's place."""
        handler = continuation(handler_call_details)
        shown = dict(handler_call_details.invocation_metadata or ()).get("authorization", "")
        held = shown if isinstance(shown, bytes) else shown.encode(errors="replace")
        fits = hmac.compare_digest(held, self._wanted)
        return handler if fits or handler_call_details.method == _PROBE else _refusing(handler)


def _refusing(handler: grpc.RpcMethodHandler[Any, Any] | None) -> grpc.RpcMethodHandler[Any, Any]:
    # A client waits for the kind of answer it asked for, so the refusal has to be of that kind.
    if handler is not None and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(_refuse)
    return grpc.unary_unary_rpc_method_handler(_refuse)


def _refuse(request: Any, context: grpc.ServicerContext) -> Any:  # noqa: ARG001  # not looked at
    _log.info("refused a call without the token", extra={"peer": context.peer()})
    abort(context, Refusal(Kind.TOKEN, "the token is missing or wrong"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror or error}") from error
