"""The report of `anchor compare` for a terminal: the sections of a comparison, the verdict first.

The report has at most 25 lines of 80 columns (in a pipe, of as many columns as COLUMNS asks for).
The sentence of the verdict is never cut: its lines beyond five are added to the 25. A command under
NEXT is a single line to be copied, however long it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anchor_cli.comparisons.growth_table import growth
from anchor_cli.comparisons.reference_table import reference
from anchor_cli.terminal import (
    MORE,
    ReportPart,
    Screen,
    cut,
    cut_name,
    fitted,
    listed,
    titled,
    width_of,
    wrapped,
)
from anchorlib.diagnosis import sections

if TYPE_CHECKING:
    from anchorlib.diagnosis import Comparison, Section, SectionEntry

__all__ = ["DOUBTED", "report"]

DOUBTED = ("suspect", "unexpected")
"""The verdicts that blame origins: records that differ although their inputs are equal."""

_LINES, _COLUMNS, _NARROW = 25, 80, 40
_SENTENCE = 5  # lines of the verdict's sentence that count in the 25
_NOTE = 4  # lines of a note
_WHY = 5  # lines of an origin's explanation: which run is nearer to the truth comes last in it
_GREEN, _YELLOW, _RED = 32, 33, 31
_COLOUR = {"IDENTICAL": _GREEN, "EXPECTED": _GREEN, "SUSPECT": _YELLOW}
_LEAST = 8  # the least columns of a name
_READABLE = 24  # a name cut below this gets the text behind it on the next line


def report(comparison: Comparison, commands: Sequence[str], screen: Screen) -> list[str]:
    """Returns the lines of the report.

    commands: the commands and advice that are shown under NEXT.
    """
    width = screen.asked or min(screen.width or _COLUMNS, _COLUMNS)
    width = max(width, _NARROW)
    blocks = [_drawn(one, width, screen) for one in sections(comparison)]
    sentence = wrapped(f"{comparison.verdict}  {comparison.sentence}", width, None)
    height = _LINES + max(0, len(sentence) - _SENTENCE)
    return fitted([*blocks, *_next(commands, width, screen)], height)


def _drawn(section: Section, width: int, screen: Screen) -> ReportPart:
    draw = {
        "config": _config,
        "verdict": _verdict,
        "first": _first,
        "origins": _origins,
        "reference": reference,
        "ops": _operations,
        "growth": growth,
        "loss": _loss,
        "note": _notes,
    }[section.key]
    return draw(section, width, screen)


def _fixed(lines: list[str]) -> ReportPart:
    return ReportPart(0, lambda _: lines)


def _config(section: Section, width: int, screen: Screen) -> ReportPart:
    room = width - len(f"{section.title}  {section.head}")
    text = f"{cut(section.subject, room, '...')}{section.head}"
    entries = [_sides(one, width) for one in section.entries]
    return listed(titled(screen, section.title, text), entries, MORE)


def _sides(entry: SectionEntry, width: int) -> list[str]:
    a, b = entry.sides or ("", "")
    room = width - 7
    name = cut(entry.name, room // 3, "...")
    # The longer value gets the columns that the shorter one leaves.
    room -= width_of(name)
    left = max(room // 2, room - width_of(b))
    right = max(room // 2, room - min(width_of(a), left))
    return [f"  {name}  {cut(a, left, '...')} | {cut(b, right, '...')}"]


def _verdict(section: Section, width: int, screen: Screen) -> ReportPart:
    first, *rest = wrapped(f"{section.title}  {section.head}", width, None)
    shown = screen.style(section.title, 1, _COLOUR.get(section.title, _RED))
    matched, others, *ranks = (one.text for one in section.entries)
    lines = [f"  {matched} {others}"]
    if width_of(lines[0]) > width:
        lines = [f"  {matched}", f"    {others}"]
    counts = [part for line in lines for part in wrapped(line, width, 2, "    ")]
    counts += [part for text in ranks for part in wrapped(f"  {text}", width, 2, "    ")]
    return _fixed([first.replace(section.title, shown, 1), *rest, *counts])


def _first(section: Section, width: int, screen: Screen) -> ReportPart:
    (entry,) = section.entries
    start = f"{section.title}  {entry.where}  "
    after = f" {entry.text}" if entry.text else ""
    fits = width - len(start) - len(after) >= min(width_of(entry.name), _READABLE)
    line, *rest = _named(start, entry.name, after if fits else "", width)
    line = line.replace(section.title, screen.style(section.title, 1), 1)
    return _fixed([line, *rest, *([] if fits or not entry.text else [f"  {entry.text}"])])


def _named(before: str, name: str, after: str, width: int) -> list[str]:
    """Returns a line of the texts `before`, `name` and `after`, with the name cut to fit `width`.

    The result has two lines, `before` alone in the first, where too few columns would be left for
    the name.
    """
    room = width - width_of(before) - width_of(after)
    if room < min(width_of(name), _LEAST):
        return [before.rstrip(), *_named("    ", name, after, max(width, 4 + _LEAST))]
    return [f"{before}{cut_name(name, room, '...')}{after}"]


def _origins(section: Section, width: int, screen: Screen) -> ReportPart:
    fits = len(f"{section.title}  {section.head}") <= width
    head = section.head if fits else section.head.partition(" (")[0]
    # What is to blame comes first: where there is room for one entry, that is the one to read.
    in_order = sorted(section.entries, key=lambda one: not one.alarming)
    entries = [_origin(one, width, screen) for one in in_order]
    block = listed(titled(screen, section.title, head), entries, MORE, headed=True)
    return block._replace(kept=1)


def _origin(one: SectionEntry, width: int, screen: Screen) -> list[str]:
    *before, line = _named(f"  {one.where}  ", one.name, f": {one.kind}", width)
    if one.alarming:
        line = screen.style(one.kind, _RED).join(line.rsplit(one.kind, 1))
    texts = [(text, 2) for text in _measured(one, width)] + [(one.text, _WHY)]
    return [
        *before,
        line,
        *(part for text, most in texts if text for part in _indented(text, width, most)),
    ]


def _indented(text: str, width: int, most: int) -> list[str]:
    return wrapped(f"    {text}", width, most, "      ")


def _operations(section: Section, width: int, screen: Screen) -> ReportPart:
    entries = [_operation(one, width) for one in section.entries]
    first, *rest = wrapped(f"{section.title}  {section.head}", width)
    head = first.replace(section.title, screen.style(section.title, 1), 1)
    block = listed(head, entries, MORE, headed=True)

    def lines(count: int) -> list[str]:
        return [head, *rest, *block.lines(count)[1:]]

    return ReportPart(block.most, lines)


def _operation(one: SectionEntry, width: int) -> list[str]:
    """Returns the lines about one place where the runs' traced operations differ.

    The module's name is cut to fit, the operations' names are wrapped.

    one: the entry on that place in the comparison's section on operations.
    """
    a, b = one.sides or ("", "")
    line = _named(f"  {one.where} of ", one.name, ":", width)[-1]
    ran = f"{line} A {a} | B {b}" if a != b else f"{line} {a}"
    texts = [ran, f"    {one.text}" * bool(one.text)]
    return [part for text in texts if text for part in wrapped(text, width, 2, "      ")]


def _measured(one: SectionEntry, width: int) -> list[str]:
    """Returns texts about an origin, a record that differs although its inputs are equal.

    The texts say how the record was computed, and how far the two runs' values are apart. They are
    joined to one text if that fits into two lines; else there are two, of which either may be "".
    """
    joined = ": ".join(filter(None, (one.made, one.far)))
    fits = len(wrapped(f"    {joined}", width, 3, "      ")) <= 2
    return [joined] if fits else [one.made, one.far]


def _loss(section: Section, width: int, screen: Screen) -> ReportPart:
    text = f"{cut_name(section.subject, 16, '...')}{section.head}"
    first, *rest = wrapped(f"{section.title}  {text}", width)
    return _fixed([first.replace(section.title, screen.style(section.title, 1), 1), *rest])


def _notes(section: Section, width: int, screen: Screen) -> ReportPart:
    start = f"{section.title}  "
    indent = " " * len(start)
    texts = [wrapped(f"{start}{one.text}", width, _NOTE, indent) for one in section.entries]
    (first, *rest), *others = texts
    entries = [rest, *([f"{indent}{line[len(start) :]}" for line in one] for one in others)]
    head = first.replace(section.title, screen.style(section.title, 1), 1)
    return listed(head, entries, MORE)


def _next(commands: Sequence[str], width: int, screen: Screen) -> list[ReportPart]:
    """Returns the section NEXT as a list with one part; [] where there are no commands.

    Each command stays on one line; advice, which begins with #, is wrapped.
    """
    if not commands:
        return []
    lines = [
        line
        for command in commands
        for line in (
            wrapped(command, width - len("NEXT  "), 3, "# ")
            if command.startswith("# ")
            else [command]
        )
    ]
    return [_fixed([titled(screen, "NEXT", lines[0]), *(f"      {line}" for line in lines[1:])])]
