"""How names, selectors and addresses from users are shown: escaped, quoted, without credentials."""

from __future__ import annotations

import re

__all__ = ["escape", "quoted", "shown_address"]

_LOOKS_ESCAPED = re.compile(r"\\(?:[nrt\\]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})", flags=re.ASCII)
_SHOWN = 200  # characters of a name, selector or address that a message quotes


def escape(text: str) -> str:
    r"""Return `text` as a terminal, log line or table may show it: printable, and unambiguous.

    What Python's repr would escape (control characters, ESC, bidirectional overrides, line and
    paragraph separators, invisible and unassigned characters, unpaired surrogates) becomes
    `\n`, `\x1b`, `\u202e`, `\U000e0001`.  Only such a text, or one that could be mistaken for an
    escaped one, has its backslashes doubled: `C:\data` stays as it is, and different texts are
    always shown differently.
    """
    if text.isprintable() and not _LOOKS_ESCAPED.search(text):
        return text
    return "".join(_escape_character(character) for character in text)


def _escape_character(character: str) -> str:
    if character.isprintable() and character != "\\":
        return character
    return repr(character)[1:-1]


def shown_address(text: str) -> str:
    """Return the address `text` as a message may show it: without credentials, escaped, shortened.

    What stands before an "@" may be a password, and what follows a "?" a signature, so both are
    left out. The result is "…" where an "@" follows the "?".
    """
    place, _, question = text.partition("?")
    if "@" in question:  # the "?" may belong to a password, or begin a query that has an "@" in it
        return "…"
    return escape(place.rpartition("@")[2][:_SHOWN])


def quoted(text: str) -> str:
    """Return `text` as error messages quote it: in single quotes, escaped, cut if it is long."""
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"'{escape(shown)}'"
