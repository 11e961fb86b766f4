"""Parsers of sizes and times that options take as text, such as `500GB` or `30d`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from anchorlib.errors import OptionError
from anchorlib.names import escape

if TYPE_CHECKING:
    from anchorlib.archive import Keep

__all__ = ["parse_age", "parse_keep", "parse_most", "parse_rate", "parse_seconds", "parse_size"]

_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST: Final = 36_525 * _UNITS["d"]
_TIME: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]?)\s*")
_BARE: Final = re.compile(r"\s*\d+(?:\.\d+)?\s*")


def parse_seconds(text: str, option: str) -> float:
    """Parses a time above zero, such as `90`, `90s`, `30m`, `2h` or `1d`; returns seconds.

    A number without a unit is in seconds. Raises OptionError for a text that is no such time, and
    for more than a hundred years: system calls that wait accept no longer time.

    option: the option's name, for the error.
    """
    match = _TIME.fullmatch(text)
    seconds = float(match[1]) * _UNITS.get(match[2], 0.0) if match else 0.0
    if not 0 < seconds <= _LONGEST:
        raise OptionError(f"{option} {escape(text[:80])!r} is no time; write 90s, 30m, 2h or 1d")
    return seconds


def parse_age(text: str, option: str) -> float:
    """Parses a time that must have a unit, such as `30d`; returns seconds.

    A command that removes runs by age must not guess the unit: `30`, meant as `30d` and read as
    seconds, would remove nearly everything. Raises OptionError, which names `option`, for a time
    without a unit and for a text that is no time.
    """
    if _TIME.fullmatch(text) and not text.strip()[-1:].isalpha():
        number = text.strip()
        raise OptionError(f"{option} {number} has no unit: write {number}d for days, or s, m or h")
    return parse_seconds(text, option)


def parse_size(text: str, option: str) -> int:
    """Parses a size, such as `500GB`, `10GiB` or `1048576`; returns bytes.

    Raises OptionError, which names `option`, for a text that is no size.
    """
    from anchorlib.spool import parse_bytes

    return parse_bytes(text, option)


def parse_most(text: str, option: str) -> int:
    """Parses a size that must have a unit, such as `500GB`; returns bytes.

    Commands that remove runs beyond a size must not guess the unit: `5`, meant as `5TB` and read as
    bytes, would remove everything. Raises OptionError, which names `option`, for a size without a
    unit and for a text that is no size.
    """
    if _BARE.fullmatch(text):
        number = escape(text.strip()[:80])
        raise OptionError(f"{option} {number} has no unit: write {number}GB, or B, KB, MB or TB")
    return parse_size(text, option)


def parse_keep(text: str, option: str) -> Keep:
    """Parses which archived runs stay on this disk: `all`, `none`, a size or an age.

    `500GB` keeps the newest archived runs, as many as take no more than 500 GB together. `30d`
    keeps each run until 30 days after it was archived. Raises OptionError, which names `option`,
    for any other text.
    """
    from anchorlib.archive import Keep

    if text in ("all", "none"):
        return Keep(most=0 if text == "none" else None)
    if _TIME.fullmatch(text) and text[-1:].isalpha():
        return Keep(seconds=parse_seconds(text, option))
    try:
        return Keep(most=parse_most(text, option))
    except OptionError:
        raise OptionError(
            f"{option} {escape(text[:80])!r}: write all, none, a size as 500GB, or a time as 30d"
        ) from None


def parse_rate(text: str, option: str) -> int:
    """Parses a rate above zero, such as `50MB` or `50MB/s`; returns bytes a second.

    Raises OptionError, which names `option`, for a text that is no rate, and for a rate of 0.
    """
    rate = parse_size(text.removesuffix("/s"), option)
    if rate <= 0:
        raise OptionError(
            f"{option} {escape(text[:80])!r} would refuse every record; write a rate above zero, "
            "as 50MB"
        )
    return rate
