"""What the terminal can show, and the two outputs: data to stdout, messages to stderr.

"For people" means on a terminal; "for programs" means in a pipe or a file.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from anchorlib.amounts import in_units

__all__ = ["Screen", "age", "document", "emit", "moment", "note", "plain", "size", "this_screen"]

_NEEDED_GLYPHS = "█▏─…"


@dataclass(frozen=True, slots=True)
class Screen:
    """What stdout can show.

    width: columns of the terminal; None in a pipe or a file, where nothing is cut to fit.
    glyphs: whether block and line characters can be shown (never in a pipe).
    color: whether ANSI styles are understood and wanted.
    asked: in a pipe or a file, the width that the variable COLUMNS gives, to which sentences are
        wrapped, while numbers and names are not cut; None without a valid COLUMNS, and on a
        terminal.
    """

    width: int | None = None
    glyphs: bool = False
    color: bool = False
    asked: int | None = None

    @property
    def human(self) -> bool:
        """Whether stdout is a terminal: sizes and times are then rounded, for a person to read."""
        return self.width is not None

    def style(self, text: str, *codes: int) -> str:
        """Returns text in ANSI styles, or unchanged where `color` is False.

        codes: the numbers of the styles, such as 1 for bold or 31 for red.
        """
        if not self.color or not text:
            return text
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m"


def this_screen() -> Screen:
    """Returns what stdout can show, as the terminal, NO_COLOR, TERM=dumb and COLUMNS say."""
    if not sys.stdout.isatty():
        return Screen(asked=_asked(os.environ.get("COLUMNS", "")))
    dumb = os.environ.get("TERM") == "dumb"
    return Screen(
        width=shutil.get_terminal_size().columns,
        glyphs=not dumb and _can_show(_NEEDED_GLYPHS),
        color=not dumb and not os.environ.get("NO_COLOR"),
    )


def _asked(columns: str) -> int | None:
    return int(columns) if re.fullmatch(r"[1-9][0-9]{0,4}", columns) else None


def _can_show(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def emit(lines: str | Iterable[str]) -> None:
    """Writes a line, or several lines as the iterable yields them, to stdout."""
    for line in [lines] if isinstance(lines, str) else lines:
        sys.stdout.write(f"{line}\n")


def note(message: str) -> None:
    """Writes a message to stderr as one line, `anchor: MESSAGE`.

    Characters that cannot be printed, such as a line end, are escaped here.
    """
    # Names in messages are escaped by their callers; texts of other libraries are escaped here.
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)
    sys.stderr.write(f"anchor: {line}\n")
    sys.stderr.flush()


def document(value: Any) -> None:
    """Writes one JSON document to stdout; NaN and infinities become null."""
    indent = 2 if sys.stdout.isatty() else None
    emit(json.dumps(plain(value), allow_nan=False, indent=indent))


def plain(value: Any) -> Any:
    """Returns a value converted to types that JSON has.

    numpy's values become Python's, a complex number becomes [real, imaginary], and NaN and
    infinities become None; dicts and lists are converted with all that they hold.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if hasattr(value, "tolist"):  # numpy, which this module does not import
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def size(count: int, screen: Screen) -> str:
    """Formats a number of bytes: with a unit on a terminal (1.2 MiB), exact in a pipe or file."""
    if not screen.human:
        return str(count)
    return in_units(count)


def moment(time_ns: int | None, screen: Screen) -> str:
    """Formats a time (ns since the epoch); "-" for None.

    The result is local time to the minute on a terminal, and ISO 8601 in UTC in a pipe or file.
    """
    if time_ns is None:
        return "-"
    seconds = time_ns / 1e9
    if screen.human:
        return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def age(time_ns: int, screen: Screen) -> str:
    """Formats a past time (ns since the epoch) as an age, such as "3 d ago".

    In a pipe or file the result is the time itself, in ISO 8601 in UTC.
    """
    if not screen.human:
        return moment(time_ns, screen)
    seconds = max(time.time() - time_ns / 1e9, 0.0)
    for unit, size_of in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size_of:
            return f"{seconds // size_of:.0f} {unit} ago"
    return "now"
