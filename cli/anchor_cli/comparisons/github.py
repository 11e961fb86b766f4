"""The result of `anchor compare` for GitHub Actions: annotations, and the summary of the step.

A line `::error title=TITLE::MESSAGE` on stdout becomes an annotation. %, CR and LF would end or
forge such a line, so they are written as %25, %0D and %0A; in TITLE also `:` and `,` are encoded.
The runner looks for commands in every line (also for `##[` inside a line), so the report, which
holds names that users chose, is printed between `::stop-commands::TOKEN` and `::TOKEN::`.

The summary is HTML, appended to the file that GITHUB_STEP_SUMMARY names.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Sequence
from html import escape as literal
from pathlib import Path
from typing import TYPE_CHECKING

from anchor_cli.comparisons.terminal_report import DOUBTED
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import cut, note
from anchorlib.diagnosis import described, selector, where
from anchorlib.names import escape

if TYPE_CHECKING:
    from anchorlib.diagnosis import Comparison, Origin

__all__ = ["annotated", "guarded", "summarise"]

_ANNOTATIONS = 10  # GitHub shows no more of one level for a step
_ROWS = 20  # origins in the summary, whose size GitHub limits to 1 MiB
_WIDTH = 400
_HEADS = ("origin", "where", "class", "what is known")
_SUMMARY = "GITHUB_STEP_SUMMARY"


def guarded(lines: Sequence[str]) -> list[str]:
    """Returns `lines` with a runner command before and one after them, which protect the lines.

    The runner then takes none of the lines for a command.
    """
    token = secrets.token_hex(16)
    return [f"::stop-commands::{token}", *lines, f"::{token}::"]


def annotated(comparison: Comparison, code: ExitCode) -> list[str]:
    """Returns the annotations of a comparison as lines: one for the verdict, then for origins.

    An origin is a difference whose inputs are equal. The first nine origins have an annotation
    each, but only where the verdict is suspect or unexpected.

    code: the exit code of the command.
    """
    level = "notice" if code == ExitCode.DONE else "error"
    if code == ExitCode.DONE and comparison.verdict in DOUBTED:
        level = "warning"
    lines = [_command(level, _title(comparison), escape(comparison.sentence))]
    if comparison.verdict in DOUBTED:
        lines += [_command(level, f"anchor: {selector(one.place)}", _annotation(one))
                  for one in comparison.origins[: _ANNOTATIONS - 1]]  # fmt: skip
    return lines


def summarise(comparison: Comparison, commands: Sequence[str]) -> None:
    """Appends the comparison to the summary file of the GitHub step, if there is one.

    A file that cannot be written is only reported on stderr.

    commands: the commands that are suggested to the user next.
    """
    place = os.environ.get(_SUMMARY)
    if not place:
        return
    try:
        with Path(place).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(_summary(comparison, commands))
    except OSError as error:  # a missing summary must not hide the verdict
        note(f"cannot write {_SUMMARY} {escape(place)}: {error.strerror or error}")


def _title(comparison: Comparison) -> str:
    return f"anchor: {comparison.verdict.upper()}"


def _annotation(origin: Origin) -> str:
    kind = origin.cls.replace("_", " ")
    return cut(f"{kind} at {where(origin.place)}: {described(origin)}", _WIDTH, "...")


def _command(level: str, title: str, message: str) -> str:
    title = _data(cut(title, _WIDTH, "...")).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={title}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _summary(comparison: Comparison, commands: Sequence[str]) -> str:
    counts = comparison.to_dict()["counts"]
    title = f"{_title(comparison)} of {escape(comparison.a)} and {escape(comparison.b)}"
    parts = [_element("h3", title), _element("p", escape(comparison.sentence))]
    parts += _table(counts, [[f"{value:,}" for value in counts.values()]])
    if comparison.origins:
        parts += _table(_HEADS, [_row(one) for one in comparison.origins[:_ROWS]])
    if len(comparison.origins) > _ROWS:
        more = f"and {len(comparison.origins) - _ROWS:,} more origins: --json has them all"
        parts.append(_element("p", more))
    parts += [_element("p", escape(one)) for one in comparison.notes]
    parts += [_element("pre", "\n".join(commands))] if commands else []
    # No blank line before the end: it would end the HTML, and names would be read as Markdown.
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
