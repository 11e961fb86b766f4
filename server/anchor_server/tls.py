"""The TLS certificate of the collector's port, and the CA that clients' certificates need."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc

from anchor_server.certificate_dates import validities
from anchorlib.errors import OptionError
from anchorlib.wire import check_private

__all__ = ["Certificates", "ServerTLS"]


@dataclass(frozen=True, slots=True)
class ServerTLS:
    """The files, in PEM form, of the collector's certificate and key.

    client_ca_file: clients have to show a certificate that this CA signed; with None they need no
        certificate.
    """

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """Reads and checks the files, and returns their contents as gRPC takes them.

        Raises OptionError where a file cannot be read, where a certificate or key cannot be used,
        where a certificate is not valid now, and where other users can read the key.
        """
        pair = (_read(self.key_file), _read(self.cert_file))
        ca = None if self.client_ca_file is None else _read(self.client_ca_file)
        check_private(self.key_file)
        self._check()
        _check_dates(self.cert_file, pair[1])
        if self.client_ca_file is not None and ca is not None:
            _check_dates(self.client_ca_file, ca)
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=ca)

    def _check(self) -> None:
        # The files are checked here because gRPC would say only that the port cannot be bound.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        file = self.cert_file
        try:
            # The empty password: nobody is there to type one.
            context.load_cert_chain(file, self.key_file, lambda: "")
            if self.client_ca_file is not None:
                file = self.client_ca_file
                context.load_verify_locations(file)
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or "no PEM file"
            raise OptionError(
                f"{file} cannot be used: {reason}; it has to be a certificate in PEM form"
                + ("" if file is self.client_ca_file else f" for the key in {self.key_file}")
            ) from None


class Certificates:
    """The TLS credentials of a gRPC port, which can be renewed while the port serves.

    Raises OptionError where `ServerTLS.configuration` does, for instance for a file that cannot be
    read.

    tls: the files. on_connection: called for each connection before its handshake.
    """

    def __init__(self, tls: ServerTLS, on_connection: Callable[[], None]) -> None:
        self._tls = tls
        self._on_connection = on_connection
        self._first = tls.configuration()
        self._renewed: grpc.ServerCertificateConfiguration | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Returns credentials for a gRPC port; each connection gets the latest certificate."""
        return grpc.dynamic_ssl_server_credentials(
            self._first,
            self._for_connection,  # type: ignore[arg-type]  # None: as before
            require_client_authentication=self._tls.client_ca_file is not None,
        )

    def renew(self) -> None:
        """Reads the certificate and key files again, for connections from now on.

        Raises OptionError where the files cannot be read or used; the old certificate then stays in
        use.
        """
        self._renewed = self._tls.configuration()

    def _for_connection(self) -> grpc.ServerCertificateConfiguration | None:
        self._on_connection()
        renewed, self._renewed = self._renewed, None
        return renewed


def _check_dates(file: Path, pem: bytes) -> None:
    """Raises OptionError where the first certificate of a file is not valid now.

    Later certificates in the file are not checked: they belong to the CAs that signed the first
    one. A file without a certificate passes.

    pem: the content of the file.
    """
    for begins, ends in validities(pem.decode("ascii", "replace"))[:1]:
        now = datetime.now(UTC)
        if now > ends:
            raise OptionError(f"the certificate in {file} has expired on {ends:%Y-%m-%d}: renew it")
        if now < begins:
            raise OptionError(
                f"the certificate in {file} is valid from {begins:%Y-%m-%d %H:%M} UTC on, which is "
                "still to come: is the clock right?"
            )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror or error}") from error
