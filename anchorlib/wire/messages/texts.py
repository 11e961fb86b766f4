"""Texts in messages, checked: what names a series or a phase, and the reason of a gap."""

from __future__ import annotations

from anchorlib.errors import InvalidNameError, ModeError
from anchorlib.modes import parse_mode
from anchorlib.names import check_name, is_kind
from anchorlib.wire.limits import TEXT_BYTES

__all__ = ["check_phase", "check_reason", "check_series"]


def check_series(name: str, kind: str, mode: str) -> tuple[str, str, str]:
    """The name, kind and mode of a series. Raises InvalidNameError or ModeError."""
    check_name(name)
    if not is_kind(kind) or len(kind.encode()) > TEXT_BYTES:
        raise InvalidNameError(f"{kind[:80]!r} is no kind of tensor")
    if len(mode) > TEXT_BYTES or str(parse_mode(mode)) != mode:
        raise ModeError(f"{mode[:80]!r} is not a mode as records carry it")
    return name, kind, mode


def check_phase(phase: str) -> str:
    """The name of a phase. Raises InvalidNameError."""
    return check_name(phase)


def check_reason(reason: str) -> str:
    """The reason of a gap, cut to the first TEXT_BYTES bytes, which are kept of it."""
    return reason.encode()[:TEXT_BYTES].decode(errors="ignore")
