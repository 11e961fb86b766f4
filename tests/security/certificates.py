"""Authorities and certificates for tests, good and bad."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in PEM files."""

    cert: Path
    key: Path
    name: x509.Name
    private: ec.EllipticCurvePrivateKey


def pair(
    folder: Path,
    name: str,
    signer: Pair | None = None,
    *,
    days: int = 1,
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
) -> Pair:
    """A pair that ends `days` from now (negative: it has expired); its own authority by default."""
    private = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer.name if signer else subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=10))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(list(map(_general, hosts))), critical=False)
        .sign(signer.private if signer else private, hashes.SHA256())
    )
    made = Pair(folder / f"{name}.pem", folder / f"{name}.key", subject, private)
    made.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    made.key.touch(mode=0o600)
    made.key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return made


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
