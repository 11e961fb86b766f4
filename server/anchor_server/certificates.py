"""The self-signed certificate and the token that `anchor serve --self-signed` makes.

They are kept in a hidden folder of the store, which the Reader service never gives out, and only
the owner may read them. The next start uses them again, so that clients keep working.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from anchorlib.errors import MissingExtraError, StoreError
from anchorlib.store import make_store

if TYPE_CHECKING:
    from cryptography import x509

__all__ = ["Identity", "check_own", "own_identity"]

_DAYS: Final = 397  # some TLS clients take no certificate that is valid for longer (398 days)
_SPARE_DAYS: Final = 30  # a certificate that ends sooner is replaced
_TOKEN_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Identity:
    """Where a collector's self-signed certificate, its key and its token are stored.

    host: the host name by which clients should address the collector.
    """

    host: str
    cert_file: Path
    key_file: Path
    token_file: Path


def own_identity(store: Path, bind_host: str) -> Identity:
    """Returns a self-signed certificate and a token for a collector; makes what is missing.

    The certificate of an earlier start is used again while it is valid for 30 days more and names
    this host; otherwise a new certificate is made. The token of an earlier start always stays.

    Raises MissingExtraError without the package cryptography, StoreError where the store cannot
    be written.

    bind_host: the host that the collector listens on.
    """
    folder = store.absolute() / ".anchor" / "tls"
    names = _names(bind_host)
    identity = Identity(names[0], *(folder / name for name in ("cert.pem", "key.pem", "token")))
    try:
        make_store(store, fsync=False)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _serves(identity, names):
            certificate, key = _make(names)
            _write(identity.key_file, key)
            _write(identity.cert_file, certificate)
        if not identity.token_file.exists():
            _write(identity.token_file, secrets.token_urlsafe(_TOKEN_BYTES).encode() + b"\n")
    except OSError as error:
        raise StoreError(f"cannot keep a certificate in {folder}: {error.strerror}") from error
    return identity


def check_own() -> None:
    """Raises MissingExtraError where `cryptography`, which makes certificates, is not installed."""
    _x509()


def _names(bind_host: str) -> list[str]:
    """Returns host names and addresses by which clients may reach the collector.

    The first is the one that clients should use.

    bind_host: the host that the collector listens on.
    """
    host = bind_host.strip("[]")
    everywhere = host in ("0.0.0.0", "::")
    names = [socket.gethostname()] if everywhere else [host]
    return list(dict.fromkeys([*names, socket.gethostname(), "localhost", "127.0.0.1", "::1"]))


def _serves(identity: Identity, names: Sequence[str]) -> bool:
    x509 = _x509()
    try:
        certificate = x509.load_pem_x509_certificate(identity.cert_file.read_bytes())
        held = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (FileNotFoundError, ValueError, x509.ExtensionNotFound):
        return False
    lasts = certificate.not_valid_after_utc - datetime.now(UTC) > timedelta(days=_SPARE_DAYS)
    return lasts and identity.key_file.exists() and set(map(_general, names)) <= set(held)


def _make(names: Sequence[str]) -> tuple[bytes, bytes]:
    """Makes a self-signed certificate for `names`, and its key; returns both in PEM form."""
    x509 = _x509()
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "anchor collector")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # a client's clock may be behind
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(list(map(_general, names))), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private


def _x509() -> Any:
    try:
        from cryptography import x509
    except ImportError:
        raise MissingExtraError(
            "--self-signed needs cryptography: pip install 'anchorlib[tls]', or give --tls-cert "
            "and --tls-key"
        ) from None
    return x509


def _general(name: str) -> x509.GeneralName:
    _x509()
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, content: bytes) -> None:
    """Writes a file atomically; from the first moment on only its owner can read it."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123  # opens a descriptor, not a path
        file.write(content)
    new.replace(path)
