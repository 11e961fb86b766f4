"""A comparison for GitHub Actions: annotations of the run, and the summary of the job.

A line `::error title=TITLE::MESSAGE` on stdout becomes an annotation. %, CR and LF end or forge
such a line and are written %25, %0D and %0A; in TITLE also `:` and `,`. The runner looks for
commands in every line (`##[` anywhere in it counts too), so the report, which holds names that
users chose, stands between `::stop-commands::TOKEN` and `::TOKEN::`.

The summary is HTML that is appended to the file that GITHUB_STEP_SUMMARY names.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Sequence
from html import escape as literal
from pathlib import Path
from typing import TYPE_CHECKING

from anchor_cli.comparisons.compared import DOUBTED
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import cut, note
from anchorlib.diagnosis import described, selector, where
from anchorlib.names import escape

if TYPE_CHECKING:
    from anchorlib.diagnosis import Comparison, Origin

__all__ = ["annotated", "guarded", "summarise"]

_ANNOTATIONS = 10  # of one level that GitHub shows of a step
_ROWS = 20  # origins in the summary, which may have 1 MiB
_WIDTH = 400
_HEADS = ("origin", "where", "class", "what is known")
_SUMMARY = "GITHUB_STEP_SUMMARY"


def guarded(lines: Sequence[str]) -> list[str]:
    """The lines, in which the runner looks for no commands."""
    token = secrets.token_hex(16)
    return [f"::stop-commands::{token}", *lines, f"::{token}::"]


def annotated(found: Comparison, code: ExitCode) -> list[str]:
    """The verdict as a line; where it fails, the first origins as one each."""
    level = "notice" if code == ExitCode.DONE else "error"
    if code == ExitCode.DONE and found.verdict in DOUBTED:
        level = "warning"
    lines = [_command(level, _title(found), escape(found.sentence))]
    if found.verdict in DOUBTED:
        lines += [_command(level, f"anchor: {selector(one.place)}", _told(one))
                  for one in found.origins[: _ANNOTATIONS - 1]]  # fmt: skip
    return lines


def summarise(found: Comparison, commands: Sequence[str]) -> None:
    """Append to the summary of the job's step where there is one; a note where that fails."""
    place = os.environ.get(_SUMMARY)
    if not place:
        return
    try:
        with Path(place).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(_summary(found, commands))
    except OSError as error:  # the verdict is worth more than its summary
        note(f"cannot write {_SUMMARY} {escape(place)}: {error.strerror or error}")


def _title(found: Comparison) -> str:
    return f"anchor: {found.verdict.upper()}"


def _told(origin: Origin) -> str:
    kind = origin.cls.replace("_", " ")
    return cut(f"{kind} at {where(origin.place)}: {described(origin)}", _WIDTH, "...")


def _command(level: str, title: str, message: str) -> str:
    title = _data(cut(title, _WIDTH, "...")).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={title}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _summary(found: Comparison, commands: Sequence[str]) -> str:
    counts = found.to_dict()["counts"]
    title = f"{_title(found)} of {escape(found.a)} and {escape(found.b)}"
    parts = [_element("h3", title), _element("p", escape(found.sentence))]
    parts += _table(counts, [[f"{value:,}" for value in counts.values()]])
    if found.origins:
        parts += _table(_HEADS, [_row(one) for one in found.origins[:_ROWS]])
    if len(found.origins) > _ROWS:
        more = f"and {len(found.origins) - _ROWS:,} more origins: --json has them all"
        parts.append(_element("p", more))
    parts += [_element("p", escape(one)) for one in found.notes]
    parts += [_element("pre", "\n".join(commands))] if commands else []
    # A blank line ends HTML in Markdown: names in it are never read as Markdown.
    return "\n".join(parts) + "\n\n"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    cells = ["".join(_element("th", head) for head in heads)]
    cells += ["".join(_element("td", cell) for cell in row) for row in rows]
    return ["<table>", *(f"<tr>{one}</tr>" for one in cells), "</table>"]


def _element(tag: str, text: str) -> str:
    return f"<{tag}>{literal(text)}</{tag}>"


def _row(origin: Origin) -> list[str]:
    texts = [selector(origin.place), where(origin.place), origin.cls.replace("_", " ")]
    return [cut(text, _WIDTH, "...") for text in (*texts, described(origin))]
