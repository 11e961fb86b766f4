"""A comparison as text for the Python prompt, as HTML for a notebook, and as a pandas frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from anchorlib.diagnosis.answer import Section, SectionEntry, sections, selector, where
from anchorlib.diagnosis.distances import nearer_text
from anchorlib.diagnosis.sizes import Measure
from anchorlib.names import escape
from anchorlib.reading import as_frame, html_table, html_text

if TYPE_CHECKING:
    import pandas as pd

    from anchorlib.diagnosis.findings import Findings

__all__ = ["frame", "html", "lines"]

SHOWN = 3
ROWS = 10
WIDEST = 1000
AT_PROMPT = {"first": "first", "origins": "origin", "ops": "operations"}
SIDES = ("entry", "A", "B")
RECORD = ("record", "where", "class", "how far", "made by", "")
MORE = {"config": "config_diff", "note": "notes", "ops": "ops.differences"}
PAIR = ("order", "order_b", "equal", "digest_a", "digest_b", "role", "score")
PLACE = ("step", "pass_index", "call", "rank", "phase", "name", "kind")


def lines(comparison: Findings) -> str:
    """Return a comparison as text for the Python prompt: the verdict, its sentence, and some lines.

    The lines are the first difference, and the first origins and differing operations. With a
    reference run, a line for each of these origins says which of A and B is nearer to the
    reference.
    """
    texts = [
        f"Comparison({comparison.a!r}, {comparison.b!r}, "
        f"{comparison.verdict}: {escape(comparison.sentence)})"
    ]
    for section in sections(comparison):
        if section.key not in AT_PROMPT:
            continue
        head = AT_PROMPT[section.key]
        texts += [f"{head}: {_said(entry)}" for entry in section.entries[:SHOWN]]
        if len(section.entries) > SHOWN:
            more = MORE.get(section.key, section.key)
            texts.append(f"and {len(section.entries) - SHOWN:,} more in .{more}")
    near = [(origin.place, nearer_text(origin.nearness)) for origin in comparison.origins[:SHOWN]]
    texts += [f"reference: {selector(at)} at {where(at)}: {text}" for at, text in near if text]
    return "\n  ".join(texts)


def _said(entry: SectionEntry) -> str:
    if entry.sides:
        a, b = entry.sides
        return f"{entry.where} of {entry.name}: A {a} | B {b}; {entry.text}".removesuffix("; ")
    about = ", ".join(filter(None, (entry.kind, entry.far, entry.made)))
    said = f": {about}" if about else f" {entry.text}" if entry.text else ""
    return f"{entry.name} at {entry.where}{said}"


def html(comparison: Findings) -> str:
    """Return a comparison as HTML: the verdict, then a paragraph or table for each section."""
    ordered = sorted(sections(comparison), key=lambda one: one.key != "verdict")
    parts = [part for section in ordered for part in _section(section)]
    return "<div>\n{}\n</div>".format("\n".join(parts))


def _section(section: Section) -> Iterator[str]:
    head = f"<b>{html_text(section.title)}</b> {html_text(section.subject + section.head)}".rstrip()
    texts = [entry.text for entry in section.entries if not entry.name]
    named = [entry for entry in section.entries if entry.name]
    yield f"<p>{head}</p>"
    yield from (f"<p>{html_text(_short(text))}</p>" for text in texts[:ROWS])
    if named:
        heads = section.heads or (SIDES if named[0].sides else RECORD)
        yield html_table(heads, [_cells(entry) for entry in named[:ROWS]])
    if section.rows:
        yield html_table(section.heads, _ends(section.rows))
    if len(section.entries) > ROWS:
        where = MORE.get(section.key, section.key)
        yield f"<p>and {len(section.entries) - ROWS:,} more in .{where}</p>"


def _cells(entry: SectionEntry) -> tuple[str, ...]:
    if entry.sides:
        place, more = ((entry.where,), (entry.text,)) if entry.where else ((), ())
        return tuple(map(_short, (entry.name, *place, *entry.sides, *more)))
    parts = (entry.name, entry.where, entry.kind, entry.far, entry.made, entry.text)
    return tuple(map(_short, parts))


def _short(text: str) -> str:
    """Return a text cut to 1,000 characters, since a note may hold thousands of names."""
    return text if len(text) <= WIDEST else f"{text[:WIDEST]}..."


def _ends(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return at most ten rows of a table: the first nine rows and the last."""
    return list(rows) if len(rows) <= ROWS else [*rows[: ROWS - 1], rows[-1]]


def frame(comparison: Findings) -> pd.DataFrame:
    """Return a pandas frame with a row for each pair, in A's order.

    An equal pair has missing values for its measures and its score.
    """
    columns: dict[str, list[Any]] = {name: [] for name in (*PLACE, *PAIR, *Measure._fields)}
    for part in comparison.columns():
        for name, column in columns.items():
            missing = float("nan") if name in Measure._fields and name != "measured" else None
            column += [missing if value is None else value for value in part[name]]
    return as_frame(columns)
