"""What `compare` says on a terminal: at most 25 lines of 80 columns, the answer near the top.

A command under NEXT is one line to be copied, however long it is.

CONFIG            the entries of the two headers that differ
the verdict       and its sentence; how many records differ
FIRST DIVERGENCE  the first record, as A ran, whose bits differ
ORIGINS           records that differ although all that they were computed from is equal
GROWTH            differences by step and kind
LOSS              where the losses part, which is later than the tensors do
NOTE              what could not be told, and why
NEXT              the command that goes on from here
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anchor_cli.alone import how_many
from anchor_cli.grown import growth
from anchor_cli.sections import Section, fitted, listed, titled, wrapped
from anchor_cli.table import cut, cut_name, width_of
from anchor_cli.terminal import Screen, plain
from anchor_cli.words import counted, figure
from anchorlib.names import escape, join

if TYPE_CHECKING:
    from anchorlib.diagnosis import Comparison, Losses, Origin, Place

__all__ = ["DOUBTED", "described", "report", "selector", "where"]

DOUBTED = ("suspect", "unexpected")
"""The verdicts that blame origins."""

_LINES, _COLUMNS, _NARROW = 25, 80, 60
_GREEN, _YELLOW, _RED = 32, 33, 31
_COLOUR = {
    "identical": _GREEN,
    "expected": _GREEN,
    "suspect": _YELLOW,
    "unexpected": _RED,
    "incomparable": _RED,
}
_PARENTS = 3
_READABLE = 24  # columns that a name keeps before other things go to the next line
_ALARMING = ("not_rounding", "nonfinite")
_OUTSIDE = ("starts_unequal", "window_start")
_APART = 2**30  # ulp: of float32 numbers of either sign, which are not near in any unit
_MORE = "--json has them all"


def report(found: Comparison, commands: Sequence[str], screen: Screen) -> list[str]:
    """The lines; `commands` are what to run next."""
    width = min(max(screen.width or _COLUMNS, _NARROW), _COLUMNS)
    sections = [
        _config(found, width, screen),
        _verdict(found, width, screen),
        *_first(found, width, screen),
        *_origins(found, width, screen),
        *growth(found, width, screen),
        *_losses(found, width, screen),
        *_notes(found, width, screen),
        *_next(commands, width, screen),
    ]
    return fitted(sections, _LINES)


def selector(place: Place) -> str:
    """Name and kind, as shown."""
    return escape(join(place.name, place.kind))


def where(place: Place) -> str:
    """Coordinates in words; what every record of a plain run shares is left out."""
    parts = [f"step {place.step}", f"pass {place.pass_index}"]
    parts += [f"call {place.call}"] if place.call else []
    parts += [f"rank {place.rank}"] if place.rank else []
    parts += [f"phase {escape(place.phase)}"] if place.phase != "train" else []
    return " ".join(parts)


def described(origin: Origin) -> str:
    """What is known of an origin, in a line: its operations, how far apart, and why."""
    return "; ".join(filter(None, (_made(origin), _far(origin), escape(origin.why))))


def _fixed(lines: list[str]) -> Section:
    return Section(0, lambda _: lines)


def _config(found: Comparison, width: int, screen: Screen) -> Section:
    differing = [_entry(name, pair, width) for name, pair in found.config_diff.items()]
    entries = "entry differs" if len(differing) == 1 else "entries differ"
    said = f"{len(differing)} header {entries}" if differing else "the headers agree"
    room = width - len(f"CONFIG  : {said}")
    runs = cut(f"{escape(found.a)} | {escape(found.b)}", room, "...")
    return listed(titled(screen, "CONFIG", f"{runs}: {said}"), differing, _MORE)


def _entry(name: str, pair: tuple[Any, Any], width: int) -> list[str]:
    from anchorlib.diagnosis import made_otherwise

    # Of what two modules were made with, what differs.
    made = made_otherwise(*pair) if name.startswith("module.") else None
    a, b = map(escape, made or _texts(*pair))
    room = width - 7
    name = cut(escape(name), room // 3, "...")
    # What the shorter one leaves is the longer one's.
    room -= width_of(name)
    left = max(room // 2, room - width_of(b))
    right = max(room // 2, room - min(width_of(a), left))
    return [f"  {name}  {cut(a, left, '...')} | {cut(b, right, '...')}"]


def _texts(a: Any, b: Any) -> tuple[str, str]:
    """Both as text; of two commands what they do not share."""
    if isinstance(a, list) and isinstance(b, list) and all(isinstance(w, str) for w in [*a, *b]):
        pairs = enumerate(zip(a, b, strict=False))
        same = next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))
        start = ["..."] if same else []
        return " ".join(start + a[same:]), " ".join(start + b[same:])
    a, b = (_text(one) for one in (a, b))
    return a, b


def _text(value: Any) -> str:
    if value is None:
        return "absent"
    return value if isinstance(value, str) else json.dumps(plain(value))


def _verdict(found: Comparison, width: int, screen: Screen) -> Section:
    verdict = found.verdict.upper()
    first, *rest = wrapped(f"{verdict}  {escape(found.sentence)}", width, 5)
    counts = how_many(found, width)
    shown = screen.style(verdict, 1, _COLOUR.get(found.verdict, _RED))
    return _fixed([first.replace(verdict, shown, 1), *rest, *counts])


def _first(found: Comparison, width: int, screen: Screen) -> list[Section]:
    if found.first is None:
        return []
    place, before = found.first.place, found.first.identical_before
    earlier = [f"({counted(before, 'record')} before it identical)"] if before else []
    start = f"FIRST DIVERGENCE  {where(place)}  "
    joined = " ".join(["", *earlier])
    fits = width - len(start) - len(joined) >= min(width_of(selector(place)), _READABLE)
    line = _named(start, selector(place), joined if fits else "", width)
    line = line.replace("FIRST DIVERGENCE", screen.style("FIRST DIVERGENCE", 1), 1)
    return [_fixed([line, *([] if fits else [f"  {one}" for one in earlier])])]


def _named(before: str, name: str, after: str, width: int) -> str:
    """One line with a name in it, which is cut where it is too long for that."""
    room = max(8, width - width_of(before) - width_of(after))
    return f"{before}{cut_name(name, room, '...')}{after}"


def _origins(found: Comparison, width: int, screen: Screen) -> list[Section]:
    if not found.origins:
        return []
    outside = all(one.cls in _OUTSIDE for one in found.origins)
    meaning = "nothing recorded before" if outside else "inputs equal, result not"
    text = f"{meaning}{_unit(found)}"
    head = titled(screen, "ORIGINS", text if len(text) + 9 <= width else text.partition(" (")[0])
    entries = [_origin(one, width, screen) for one in found.origins]
    return [listed(head, entries, _MORE, headed=True)]


def _unit(found: Comparison) -> str:
    """What eps is, in a phrase."""
    from anchorlib.dtypes import DTYPES

    eps = next((o.measure.eps for o in found.origins if o.measure.eps > 0), None)
    name = next((d.name for d in DTYPES.values() if d.eps == eps and d.eps), None)
    return "" if name is None else f" (1 eps = {eps:.2g}, {name}'s relative step)"


def _origin(one: Origin, width: int, screen: Screen) -> list[str]:
    kind = one.cls.replace("_", " ")
    line = _named(f"  {where(one.place)}  ", selector(one.place), f": {kind}", width)
    if one.cls in _ALARMING:
        line = screen.style(kind, _RED).join(line.rsplit(kind, 1))
    alike = f"{one.amongst - 1:,} more like it" if one.amongst > 1 else ""
    why = "; ".join(filter(None, (escape(one.why), alike)))
    texts = [*_measured(one, width), why]
    return [
        line,
        *(part for text in texts if text for part in wrapped(f"    {text}", width, 2, "      ")),
    ]


def _measured(one: Origin, width: int) -> list[str]:
    """How it was made and how far apart it is: names are cut to make room, figures never are."""
    joined = ": ".join(filter(None, (_made(one), _far(one))))
    fits = len(wrapped(f"    {joined}", width, 3, "      ")) <= 2
    return [joined] if fits else [_made(one), _far(one)]


def _made(one: Origin) -> str:
    """The operations, and the equal records they worked on."""
    made = "/".join(map(escape, one.ops))
    parents = ", ".join(map(escape, one.parents[:_PARENTS]))
    if len(one.parents) > _PARENTS:
        parents += f" and {len(one.parents) - _PARENTS} more"
    return f"{made} of {parents} (equal)" if made and parents else made or parents


def _far(one: Origin) -> str:
    """How far apart the two records are."""
    measure = one.measure
    parts = []
    if measure.unrelated:  # units of rounding say nothing of two things
        parts.append("unrelated")
    elif not math.isnan(measure.error_eps):
        parts.append(f"{figure(measure.error_eps)} eps")
    if not math.isnan(measure.share_differing):
        parts.append(f"{100 * measure.share_differing:.3g} % differ")
    if one.where not in ("", "all"):
        parts.append(f"in {one.where}")
    if one.max_ulp is not None and one.max_ulp < _APART and not measure.unrelated:
        parts.append(f"max {one.max_ulp:,} ulp")
    return ", ".join(parts)


def _losses(found: Comparison, width: int, screen: Screen) -> list[Section]:
    if found.losses is None or found.first is None:
        return []
    losses = found.losses
    name = cut_name(escape(losses.name), 16, "...")
    text = f"{name} {_partings(losses)}; tensors part at {found.first.place.step}"
    first, *rest = wrapped(f"LOSS  {text}", width)
    return [_fixed([first.replace("LOSS", screen.style("LOSS", 1), 1), *rest])]


def _partings(losses: Losses) -> str:
    if losses.first_bit is None:
        return "does not part"
    marks = {"1e-6": losses.above_1e6, "1e-3": losses.above_1e3}
    later = [f"{mark} {'never' if at is None else f'at {at}'}" for mark, at in marks.items()]
    return ", by ".join([f"parts at step {losses.first_bit}", *later])


def _notes(found: Comparison, width: int, screen: Screen) -> list[Section]:
    notes = [*_paired(found), *map(escape, found.notes)]
    if not notes:
        return []
    (first, *rest), *others = [wrapped(f"NOTE  {note}", width, 2, "      ") for note in notes]
    entries = [rest, *([f"      {line[6:]}" for line in other] for other in others)]
    head = first.replace("NOTE", screen.style("NOTE", 1), 1)
    return [listed(head, entries, _MORE)]


def _paired(found: Comparison) -> list[str]:
    """How records came to stand for each other, where that is not plain."""
    if not found.renamed:
        return []
    one = found.renamed[0]
    more = f" and {len(found.renamed) - 1} more" if len(found.renamed) > 1 else ""
    return [f"renamed ({one.how}): {escape(one.a)} is {escape(one.b)} in B{more}"]


def _next(commands: Sequence[str], width: int, screen: Screen) -> list[Section]:
    """Commands to be pasted, each one line however long it is, and advice as comments."""
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
