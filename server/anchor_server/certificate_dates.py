"""The dates between which a certificate is valid, read from its PEM file.

The standard library gives these dates only for the certificate of a finished TLS handshake.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from typing import Final

__all__ = ["validities"]

_BLOCK: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _EXPLICIT_0, _UTC_TIME = 0x30, 0xA0, 0x17


def validities(pem: str) -> list[tuple[datetime, datetime]]:
    """Returns the first and the last moment of validity of each certificate in `pem`, in order.

    Raises ValueError for a PEM block that is no certificate.
    """
    return [_validity(ssl.PEM_cert_to_DER_cert(block)) for block in _BLOCK.findall(pem)]


def _validity(der: bytes) -> tuple[datetime, datetime]:
    # Certificate ::= SEQUENCE { tbs SEQUENCE { [0] version, serial, signature, issuer,
    #                            validity SEQUENCE { notBefore, notAfter }, … } … }   (RFC 5280)
    (_, certificate), *_ = _elements(der)
    (_, to_be_signed), *_ = _elements(certificate)
    fields = _elements(to_be_signed)
    if fields[0][0] == _EXPLICIT_0:
        fields = fields[1:]
    tag, validity = fields[3]
    times = _elements(validity)
    if tag != _SEQUENCE or len(times) != 2:
        raise ValueError("it holds no certificate")
    (begins, ends) = (_time(*one) for one in times)
    return begins, ends


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Splits the content of a DER sequence; returns the tag and the content of each element.

    DER is the binary form of certificates: elements of a tag, a length and a content.
    """
    elements = []
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        elements.append((tag, der[at : at + length]))
        at += length
    return elements


def _time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == _UTC_TIME:  # two digits stand for a year from 1950 to 2049
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
