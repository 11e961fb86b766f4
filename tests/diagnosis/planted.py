"""The table of planted faults, and of controls that share their networks."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.diagnosis.controls import KINDS, Alarm, judge_autocast, judge_scene
from tests.diagnosis.faults import Outcome, draw_fault, judge_fault
from tests.diagnosis.training import PRECISIONS, SHAPES

__all__ = ["alarms", "missed", "outcomes", "report"]


def outcomes(seeds: Iterable[int]) -> Iterable[Outcome]:
    """The outcomes of these faults; wrong answers are printed on the way."""
    for seed in seeds:
        with tempfile.TemporaryDirectory() as store:
            outcome = judge_fault(draw_fault(seed), Path(store))
        good = outcome.origin and outcome.cls and outcome.verdict
        if outcome.state == "scored" and not good:
            marks = zip(
                ("origin", "class", "verdict"),
                (outcome.origin, outcome.cls, outcome.verdict),
                strict=True,
            )
            wrong = " ".join(name for name, right in marks if not right)
            print(f"wrong {wrong}: {outcome.fault}\n    {outcome.said}", file=sys.stderr)
        yield outcome


def alarms(scenes: Sequence[int], autocast: Sequence[int], compiled: int) -> Iterable[Alarm]:
    """The controls of these scenes, judged; the first `compiled` scenes are compiled too."""
    for seed in scenes:
        kinds = (*KINDS, "compiled") if seed < compiled else KINDS
        with tempfile.TemporaryDirectory() as store:
            yield from map(_told, judge_scene(seed, Path(store), kinds))
    for seed in autocast:
        with tempfile.TemporaryDirectory() as store:
            yield from map(_told, judge_autocast(seed, Path(store)))


def missed(found: Sequence[Outcome], raised: Sequence[Alarm]) -> bool:
    """Whether a target is missed: 99 of 100 origins, 99 of 100 classes, no false alarm."""
    scored = [outcome for outcome in found if outcome.state == "scored"]
    least = 0.99 * len(scored)
    origins, classes = (sum(getattr(o, name) for o in scored) for name in ("origin", "cls"))
    return origins < least or classes < least or any(alarm.wrong for alarm in raised)


def report(found: Sequence[Outcome], raised: Sequence[Alarm]) -> Iterable[str]:
    """The tables, in Markdown."""
    if found:
        yield from _faults(found)
    if raised:
        yield ""
        yield "| control | runs compared | wrong | verdicts |"
        yield "|---|---|---|---|"
        for kind in dict.fromkeys(alarm.kind for alarm in raised):
            own = [alarm for alarm in raised if alarm.kind == kind]
            verdicts = {
                v: sum(a.verdict == v for a in own) for v in sorted({a.verdict for a in own})
            }
            told = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
            yield f"| {kind} | {len(own)} | {sum(bool(a.wrong) for a in own)} | {told} |"


def _told(alarm: Alarm) -> Alarm:
    if alarm.wrong:
        print(f"alarm: {alarm}", file=sys.stderr)
    return alarm


def _faults(found: Sequence[Outcome]) -> Iterable[str]:
    yield "| net | precision | " + " | ".join(SHAPES) + " |"
    yield "|---|---|" + "---|" * len(SHAPES)
    nets = dict.fromkeys(outcome.fault.reference.net for outcome in found)
    for net in nets:
        for precision in PRECISIONS:
            cells = []
            for shape in SHAPES:
                own = [
                    o
                    for o in found
                    if (o.fault.reference.net, o.fault.reference.precision, o.fault.reference.shape)
                    == (net, precision, shape)
                ]
                cells.append(_cell(own))
            yield f"| {net} | {precision} | " + " | ".join(cells) + " |"
    yield ""
    scored = [o for o in found if o.state == "scored"]
    for name, right in (("origin", "origin"), ("class", "cls"), ("verdict", "verdict")):
        count = sum(getattr(o, right) for o in scored)
        yield f"{name} right: {count} of {len(scored)}"
    for state in ("no bit", "unclear"):
        seeds = [o.fault.seed for o in found if o.state == state]
        yield f"{state}: {len(seeds)} {seeds or ''}".rstrip()


def _cell(own: Sequence[Outcome]) -> str:
    scored = [o for o in own if o.state == "scored"]
    if not scored:
        return "–"
    return f"{sum(o.origin for o in scored)}, {sum(o.cls for o in scored)} of {len(scored)}"
