"""A comparison as a list of sections, for the terminal, the Python prompt, notebooks and the page.

config    the entries of the two runs' headers that differ
verdict   the answer in a sentence; how many records differ, and on which ranks
first     the first record whose bits differ, in A's order of execution
origins   records that differ although all the records they were computed from are equal
reference which of A and B is nearer to a third run at each origin, a table
ops       operations that one run alone ran, or both with other arguments, where both were traced
growth    differences by step and kind, a table
loss      from which step on the losses of the two runs differ
note      what could not be decided, and why

A and B are the two runs. A section that has nothing to say is left out. All texts are escaped,
since names come from users.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from anchorlib.amounts import counted, figure
from anchorlib.diagnosis.causes import MODULE, made_otherwise
from anchorlib.diagnosis.counting import how_many
from anchorlib.diagnosis.distances import NEARNESS, nearer_text, nearness_cells
from anchorlib.diagnosis.judgement import computing
from anchorlib.diagnosis.rank_spans import ranks_line
from anchorlib.diagnosis.tracing import headline, shown_differences
from anchorlib.dtypes import DTYPES
from anchorlib.names import escape, join

if TYPE_CHECKING:
    from anchorlib.diagnosis.findings import Findings
    from anchorlib.diagnosis.judgement import Growth, Losses, Origin
    from anchorlib.diagnosis.pairing import RecordPlace

__all__ = ["Section", "SectionEntry", "described", "sections", "selector", "where"]

Key = Literal["config", "verdict", "first", "origins", "reference", "ops", "growth", "loss", "note"]

PARENTS, OPS = 3, 8  # how many are named
ALARMING = ("not_rounding", "nonfinite")
OUTSIDE = ("starts_unequal", "window_start")
APART = 2**30  # ulp: two float32 numbers so far apart mostly differ in sign, and ulps say nothing


@dataclass(frozen=True, slots=True)
class SectionEntry:
    """One entry of a section of the answer.

    name, where: what the entry is about, in words: a record and its coordinates, the name of a
    header entry, or, in the section "ops", a module and a stage.
    place: the coordinates of the record as values; None where the entry is about no record.
    kind: the class of an origin, such as "not rounding". alarming: whether the entry is shown
    conspicuously.
    sides: the texts of A and of B under `name`, such as the two values of a header entry.
    made, far: how the record was made, and how far apart the two runs are in it.
    text: everything else, in words.
    """

    text: str = ""
    where: str = ""
    name: str = ""
    kind: str = ""
    alarming: bool = False
    sides: tuple[str, str] | None = None
    made: str = ""
    far: str = ""
    place: RecordPlace | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the answer: a headline with entries below it, or with a table.

    key: which section it is, one of those that the module's text lists.
    title, subject, head: the parts of the headline: the section's title, a name that the section is
    about (such as a run's), and the headline's text.
    entries: the entries below the headline. heads: the column heads of the table or of the entries.
    rows: the cells of the table; empty where the section has entries instead.
    """

    key: Key
    title: str
    head: str = ""
    subject: str = ""
    entries: tuple[SectionEntry, ...] = ()
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def sections(comparison: Findings) -> tuple[Section, ...]:
    """Return all sections of a comparison that have something to say, in the order to be read."""
    every = (
        _config(comparison),
        _verdict(comparison),
        _first(comparison),
        _origins(comparison),
        _reference(comparison),
        _operations(comparison),
        _growth(comparison),
        _losses(comparison),
        _notes(comparison),
    )
    return tuple(section for section in every if section is not None)


def selector(place: RecordPlace) -> str:
    """Return a record's name and kind as users write them, such as `fc2.bias@grad`, escaped."""
    return escape(join(place.name, place.kind))


def where(place: RecordPlace) -> str:
    """Return the coordinates of a record in words, such as "step 3 pass 0 rank 2".

    Call 0, rank 0 and phase "train", the usual ones, are left out.
    """
    parts = [f"step {place.step}", f"pass {place.pass_index}"]
    parts += [f"call {place.call}"] if place.call else []
    parts += [f"rank {place.rank}"] if place.rank else []
    parts += [f"phase {escape(place.phase)}"] if place.phase != "train" else []
    return " ".join(parts)


def described(origin: Origin) -> str:
    """Return what is known of an origin in one line, escaped.

    The line says how its record was made, how far apart the runs are in it, why it differs, and
    which run is nearer to the reference run; parts that are not known are left out.
    """
    parts = (_made(origin), _far(origin), escape(origin.why), nearer_text(origin.nearness))
    return "; ".join(filter(None, parts))


def _config(comparison: Findings) -> Section:
    entries = tuple(_setting(name, pair) for name, pair in comparison.config_diff.items())
    differ = "entry differs" if len(entries) == 1 else "entries differ"
    said = f"{len(entries)} header {differ}" if entries else "the headers agree"
    runs = f"{escape(comparison.a)} | {escape(comparison.b)}"
    return Section("config", "CONFIG", f": {said}", runs, entries)


def _setting(name: str, pair: tuple[Any, Any]) -> SectionEntry:
    made = made_otherwise(*pair) if name.startswith(MODULE) else None
    a, b = map(escape, made or _texts(*pair))
    return SectionEntry(name=escape(name), sides=(a, b))


def _texts(a: Any, b: Any) -> tuple[str, str]:
    """Return A's and B's value of a header entry as text.

    Where both values are lists of words, such as two command lines, the words with which both begin
    are replaced by "...". Of other values, None is written "absent", and all but texts as JSON.
    """
    if isinstance(a, list) and isinstance(b, list) and all(isinstance(w, str) for w in [*a, *b]):
        pairs = enumerate(zip(a, b, strict=False))
        same = next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))
        start = ["..."] if same else []
        return " ".join(start + a[same:]), " ".join(start + b[same:])
    return _text(a), _text(b)


def _text(value: Any) -> str:
    if value is None:
        return "absent"
    return value if isinstance(value, str) else json.dumps(_plain(value), default=str)


def _plain(value: Any) -> Any:
    """Return a JSON-like value with None in place of NaN and infinities, which JSON cannot hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _verdict(comparison: Findings) -> Section:
    counts = tuple(
        SectionEntry(text) for text in (*how_many(comparison), ranks_line(comparison.ranks)) if text
    )
    return Section(
        "verdict", comparison.verdict.upper(), escape(comparison.sentence), entries=counts
    )


def _first(comparison: Findings) -> Section | None:
    if comparison.first is None:
        return None
    place, before = comparison.first.place, comparison.first.identical_before
    earlier = f"({counted(before, 'record')} before it identical)" if before else ""
    entry = SectionEntry(earlier, where=where(place), name=selector(place), place=place)
    return Section("first", "FIRST DIVERGENCE", entries=(entry,))


def _origins(comparison: Findings) -> Section | None:
    if not comparison.origins:
        return None
    outside = all(origin.cls in OUTSIDE for origin in comparison.origins)
    meaning = "nothing recorded before" if outside else "inputs equal, result not"
    entries = tuple(map(_origin, comparison.origins))
    unit = _unit([origin.measure.eps for origin in comparison.origins])
    return Section("origins", "ORIGINS", f"{meaning}{unit}", entries=entries)


def _reference(comparison: Findings) -> Section | None:
    """Return the section on the reference run; None where the comparison has no reference run.

    Its table has a row for each origin that was looked up in the reference run: how far A and B are
    from the reference there, and which of the two is nearer. There is no table, but a headline that
    says why, if there is no such origin, or if none can be measured for one and the same reason.
    """
    if comparison.reference is None:
        return None
    near = [
        (origin, origin.nearness) for origin in comparison.origins if origin.nearness is not None
    ]
    lacks = {n.lacks for _, n in near}
    if not near:
        head = ": A and B have no origin to measure from it"
    elif len(lacks) == 1 and "" not in lacks:
        head = f": it tells nothing of the {counted(len(near), 'origin')}: {lacks.pop()}"
    else:
        head = f": how far A and B are from it, {_in_eps([n.eps for _, n in near])}"
        rows = tuple((where(o.place), selector(o.place), *nearness_cells(n)) for o, n in near)
        heads = ("where", "record", *NEARNESS)
        subject = escape(comparison.reference)
        return Section("reference", "REFERENCE", head, subject, heads=heads, rows=rows)
    return Section("reference", "REFERENCE", head, escape(comparison.reference))


def _in_eps(sizes: Sequence[float]) -> str:
    """Return "in eps of DTYPE" if all positive sizes are the eps of one dtype, else "in eps".

    sizes: the eps (spacing of the numbers above 1) of each origin's dtype; 0 or nan for none.
    """
    distinct = {size for size in sizes if size > 0}
    name = _of_eps(distinct.pop()) if len(distinct) == 1 else None
    return "in eps" if name is None else f"in eps of {name}"


def _unit(sizes: Sequence[float]) -> str:
    """Return a phrase that says how large 1 eps is and of which dtype, for the first positive size.

    sizes: the eps of each origin's dtype. "" where that first size is not the eps of a known dtype.
    """
    eps = next((size for size in sizes if size > 0), None)
    name = None if eps is None else _of_eps(eps)
    return "" if name is None else f" (1 eps = {eps:.2g}, {name}'s relative step)"


def _of_eps(eps: float) -> str | None:
    return next((d.name for d in DTYPES.values() if d.eps == eps and d.eps), None)


def _origin(origin: Origin) -> SectionEntry:
    alike = f"{origin.amongst - 1:,} more like it" if origin.amongst > 1 else ""
    return SectionEntry(
        text="; ".join(filter(None, (escape(origin.why), alike))),
        where=where(origin.place),
        name=selector(origin.place),
        kind=origin.cls.replace("_", " "),
        alarming=origin.cls in ALARMING,
        made=_made(origin),
        far=_far(origin),
        place=origin.place,
    )


def _made(one: Origin) -> str:
    """Return how the record of an origin was made: "mm/add of fc1, x (equal)".

    The operations come first, then the records that they worked on, which are equal in both runs.
    "" where neither is known.
    """
    ops = computing(one.ops)
    made = "/".join(map(escape, ops[:OPS]))
    if len(ops) > OPS:
        made += f" and {len(ops) - OPS:,} more"
    parents = ", ".join(map(escape, one.parents[:PARENTS]))
    if len(one.parents) > PARENTS:
        parents += f" and {len(one.parents) - PARENTS:,} more"
    return f"{made} of {parents} (equal)" if made and parents else made or parents


def _far(one: Origin) -> str:
    """Return how far apart the two records of an origin are, in several measures; "" if unknown."""
    measure = one.measure
    parts = []
    if measure.unrelated:  # an error in eps says nothing of two tensors with nothing in common
        parts.append("unrelated")
    elif not math.isnan(measure.error_eps):
        # What is infinite in one run alone has no distance: the error is of the other elements.
        beside = " where both are finite" if measure.nonfinite else ""
        parts.append(f"{figure(measure.error_eps)} eps{beside}")
    if not math.isnan(measure.share_differing):
        parts.append(f"{100 * measure.share_differing:.3g} % differ")
    if one.where not in ("", "all"):
        parts.append(f"in {one.where}")
    known = not (measure.unrelated or measure.nonfinite)
    if one.max_ulp is not None and one.max_ulp < APART and known:
        parts.append(f"max {one.max_ulp:,} ulp")
    return ", ".join(parts)


def _operations(comparison: Findings) -> Section | None:
    if comparison.ops is None:
        return None
    entries = tuple(
        SectionEntry(
            difference.text,
            where=difference.stage,
            name=difference.module,
            sides=(difference.a, difference.b),
        )
        for difference in shown_differences(comparison.ops, comparison.origins)
    )
    heads = ("module", "stage", "A", "B", "")
    return Section("ops", "OPERATIONS", headline(comparison.ops), entries=entries, heads=heads)


def _growth(comparison: Findings) -> Section | None:
    """Return the section "growth", a table of the differences; None where no record differs.

    The table has a row for each step and a column for each kind that differs in some step. A cell
    holds the number of differing pairs, the number of all pairs, and the median error in eps. With
    noise runs, a last column has the step's largest score: the error as a multiple of the noise.
    """
    kinds = list(dict.fromkeys(growth.kind for growth in comparison.growth if growth.differing))
    if not kinds:
        return None
    cells = {(growth.step, growth.kind): growth for growth in comparison.growth}
    scored = any(growth.score is not None for growth in comparison.growth)
    meaning = "differing/all, median error in eps" + "; score: times noise" * scored
    rows = []
    for step in sorted({growth.step for growth in comparison.growth}):
        here = [cells.get((step, kind)) for kind in kinds]
        scores = [cell.score for cell in here if cell is not None and cell.score is not None]
        score = [figure(max(scores)) if scores else "-"] * scored
        rows.append((str(step), *map(_cell, here), *score))
    heads = ("step", *map(escape, kinds), *["score"] * scored)
    return Section("growth", "GROWTH", meaning, heads=heads, rows=tuple(rows))


def _cell(growth: Growth | None) -> str:
    if growth is None:
        return "-"
    error = "" if growth.median_error_eps is None else f" {figure(growth.median_error_eps)}"
    return f"{growth.differing:,}/{growth.matched:,}{error}"


def _losses(comparison: Findings) -> Section | None:
    if comparison.losses is None or comparison.first is None:
        return None
    head = f" {_partings(comparison.losses)}; tensors part at {comparison.first.place.step}"
    return Section("loss", "LOSS", head, escape(comparison.losses.name))


def _partings(losses: Losses) -> str:
    if losses.first_bit is None:
        return "does not part"
    marks = {"1e-6": losses.above_1e6, "1e-3": losses.above_1e3}
    later = [f"{mark} {'never' if at is None else f'at {at}'}" for mark, at in marks.items()]
    parting = ", by ".join([f"parts at step {losses.first_bit}", *later])
    if (lost := losses.first_without_number()) is None:
        return parting
    step, run, what = lost
    return f"{parting}; {what} in {run} at {step}"


def _notes(comparison: Findings) -> Section | None:
    notes: Sequence[str] = [*_paired(comparison), *map(escape, comparison.notes)]
    return Section("note", "NOTE", entries=tuple(map(SectionEntry, notes))) if notes else None


def _paired(comparison: Findings) -> list[str]:
    """Return a line about tensors with different names: the first pair, and the number of others.

    It also says how the names of that pair were matched. [] if all names are equal.
    """
    if not comparison.renamed:
        return []
    renaming = comparison.renamed[0]
    more = f" and {len(comparison.renamed) - 1} more" if len(comparison.renamed) > 1 else ""
    return [f"renamed ({renaming.how}): {escape(renaming.a)} is {escape(renaming.b)} in B{more}"]
