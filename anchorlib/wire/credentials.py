"""The token and certificates that a client shows to a collector, and the certificates it trusts.

This module does not import gRPC.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from anchorlib.errors import OptionError
from anchorlib.wire.address import Address, is_loopback
from anchorlib.wire.secret_files import check_private

__all__ = ["Credentials", "Metadata", "check_credentials"]

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Credentials:
    """The token and certificates that a client shows, and the certificates that it trusts.

    token: the bearer token; never part of a repr, nor of any error message.
    ca_file: certificates to trust instead of the system's.
    cert_file, key_file: the client's certificate and its key, for a collector that asks for them.

    Raises OptionError for a token that no header can carry, and for a certificate without its key
    or a key without its certificate.
    """

    token: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def __post_init__(self) -> None:
        token = self.token
        if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
            raise OptionError("the token is empty, or has characters that a header cannot carry")
        if (self.cert_file is None) != (self.key_file is None):
            raise OptionError(
                "a client's certificate and its key go together: set both ANCHOR_CLIENT_CERT and "
                "ANCHOR_CLIENT_KEY, or neither"
            )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Credentials:
        """Make the credentials that the environment variables describe.

        The variables are ANCHOR_TOKEN, ANCHOR_TOKEN_FILE (read where there is no ANCHOR_TOKEN),
        ANCHOR_CA_FILE, ANCHOR_CLIENT_CERT and ANCHOR_CLIENT_KEY. Raises OptionError as the class
        does, and for a token file that cannot be read, or that others than its owner can read.
        """
        token = environ.get("ANCHOR_TOKEN")
        if not token and (file := environ.get("ANCHOR_TOKEN_FILE")):
            token = _token_of(Path(file))
        return cls(
            token or None,
            _path(environ, "ANCHOR_CA_FILE"),
            _path(environ, "ANCHOR_CLIENT_CERT"),
            _path(environ, "ANCHOR_CLIENT_KEY"),
        )

    @property
    def metadata(self) -> Metadata:
        """The gRPC metadata that is sent with every call: the token's header; () without token."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)


def check_credentials(address: Address, credentials: Credentials) -> None:
    """Raise OptionError for credentials that cannot or must not be shown to the collector.

    A token must not cross a network in plain text: it needs TLS or a loopback address. Where the
    address has TLS, files of certificates and keys must be readable and hold what they should, and
    nobody but its owner may read the key.
    """
    if credentials.token is not None and not address.tls and not is_loopback(address.host):
        raise OptionError(
            f"the token would go to {address} in plain text; write grpcs://{address.target}, or "
            "reach the collector through a tunnel that ends on this machine"
        )
    if address.tls:
        _check_files(credentials)


def _check_files(credentials: Credentials) -> None:
    for file in (credentials.ca_file, credentials.key_file, credentials.cert_file):
        read_file(file)
    # gRPC accepts files that hold no certificate, and fails at the first call without saying why.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if credentials.ca_file is not None:
        _check(credentials.ca_file, lambda: context.load_verify_locations(credentials.ca_file))
    if (file := credentials.cert_file) is not None and credentials.key_file is not None:
        check_private(credentials.key_file)
        _check(file, lambda: context.load_cert_chain(file, credentials.key_file, _no_password))


def _check(file: Path, load: Callable[[], None]) -> None:
    try:
        load()
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "no PEM file"
        raise OptionError(f"{file} holds no certificate that can be used: {reason}") from None


def _no_password() -> str:
    return ""  # nobody is there to be asked for the password of a key


def _token_of(file: Path) -> str:
    """Read the token from `file`; raise OptionError if it has none, or others may read the file."""
    try:
        check_private(file)
        token = file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        token = ""
    except OSError as error:
        raise OptionError(f"cannot read the token in {file}: {error.strerror}") from error
    if not token or not token.isascii() or not token.isprintable():
        raise OptionError(f"{file} holds no token: write one line of printable ASCII into it")
    return token


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None


def read_file(path: Path | None) -> bytes | None:
    """Return the content of the file at `path`; None if `path` is None.

    Raises OptionError if the file cannot be read.
    """
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror or error}") from error
