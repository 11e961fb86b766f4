"""Checks the texts in messages: names, kinds and modes of series, phases, and reasons of gaps."""

from __future__ import annotations

from anchorlib.errors import InvalidNameError, ModeError
from anchorlib.modes import parse_mode
from anchorlib.names import check_name, is_kind
from anchorlib.wire.limits import TEXT_BYTES

__all__ = ["check_phase", "check_reason", "check_series"]


def check_series(name: str, kind: str, mode: str) -> tuple[str, str, str]:
    """Return (name, kind, mode) of a series, or raise InvalidNameError or ModeError if invalid."""
    check_name(name)
    if not is_kind(kind) or len(kind.encode()) > TEXT_BYTES:
        raise InvalidNameError(f"{kind[:80]!r} is no kind of tensor")
    if len(mode) > TEXT_BYTES or str(parse_mode(mode)) != mode:
        raise ModeError(f"{mode[:80]!r} is not a mode as records carry it")
    return name, kind, mode


def check_phase(phase: str) -> str:
    """Return `phase`, the name of a phase, or raise InvalidNameError if the name is invalid."""
    return check_name(phase)


def check_reason(reason: str) -> str:
    """Return `reason` (why there is a gap, or any other text) cut to TEXT_BYTES bytes of UTF-8."""
    return reason.encode()[:TEXT_BYTES].decode(errors="ignore")
