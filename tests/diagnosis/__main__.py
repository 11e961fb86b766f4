"""What compare finds of planted faults, and how often it raises a false alarm: the table.

python -m tests.diagnosis                       # all of it: make diagnosis
python -m tests.diagnosis --faults 0:27 --scenes 0:3 --compiled 0
python -m tests.diagnosis --faults 12           # one seed, with what was said
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from tests.diagnosis.controls import KINDS, Alarm, judge_autocast, judge_scene
from tests.diagnosis.faults import Outcome, draw_fault, judge_fault
from tests.diagnosis.training import PRECISIONS, SHAPES


def main() -> int:
    """Plant, compare, count; 1 where a target of the table is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=_seeds, default=range(135), metavar="A[:B]")
    parser.add_argument("--scenes", type=_seeds, default=range(12), metavar="A[:B]")
    parser.add_argument("--autocast", type=_seeds, default=range(6), metavar="A[:B]")
    parser.add_argument("--compiled", type=int, default=3, help="how many scenes are compiled too")
    options = parser.parse_args()
    began = time.monotonic()
    outcomes = list(_outcomes(options.faults))
    alarms = list(_alarms(options.scenes, options.autocast, options.compiled))
    print("\n".join(report(outcomes, alarms)))
    print(
        f"\nseeds: faults {_span(options.faults)}, scenes {_span(options.scenes)} (the first "
        f"{options.compiled} compiled too), autocast {_span(options.autocast)}; torch "
        f"{torch.__version__}, {time.monotonic() - began:.0f} s"
    )
    return int(missed(outcomes, alarms))


def missed(outcomes: Sequence[Outcome], alarms: Sequence[Alarm]) -> bool:
    """Whether a target is missed: 95 of 100 origins, 95 of 100 classes, no false alarm."""
    scored = [outcome for outcome in outcomes if outcome.state == "scored"]
    least = 0.95 * len(scored)
    origins, classes = (sum(getattr(o, name) for o in scored) for name in ("origin", "cls"))
    return origins < least or classes < least or any(alarm.wrong for alarm in alarms)


def _span(seeds: range) -> str:
    return f"{seeds.start}-{seeds.stop - 1}" if seeds else "none"


def _seeds(text: str) -> range:
    first, colon, stop = text.partition(":")
    return range(int(first), int(stop) if colon else int(first) + 1)


def _outcomes(seeds: Iterable[int]) -> Iterable[Outcome]:
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


def _alarms(scenes: Sequence[int], autocast: Sequence[int], compiled: int) -> Iterable[Alarm]:
    for number, seed in enumerate(scenes):
        kinds = (*KINDS, "compiled") if number < compiled else KINDS
        with tempfile.TemporaryDirectory() as store:
            yield from map(_told, judge_scene(seed, Path(store), kinds))
    for seed in autocast:
        with tempfile.TemporaryDirectory() as store:
            yield from map(_told, judge_autocast(seed, Path(store)))


def _told(alarm: Alarm) -> Alarm:
    if alarm.wrong:
        print(f"alarm: {alarm}", file=sys.stderr)
    return alarm


def report(outcomes: Sequence[Outcome], alarms: Sequence[Alarm]) -> Iterable[str]:
    """The table, in Markdown."""
    if outcomes:
        yield from _faults(outcomes)
    if alarms:
        yield ""
        yield "| control | runs compared | wrong | verdicts |"
        yield "|---|---|---|---|"
        for kind in dict.fromkeys(alarm.kind for alarm in alarms):
            own = [alarm for alarm in alarms if alarm.kind == kind]
            verdicts = {
                v: sum(a.verdict == v for a in own) for v in sorted({a.verdict for a in own})
            }
            told = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
            yield f"| {kind} | {len(own)} | {sum(bool(a.wrong) for a in own)} | {told} |"


def _faults(outcomes: Sequence[Outcome]) -> Iterable[str]:
    yield "| net | precision | " + " | ".join(SHAPES) + " |"
    yield "|---|---|" + "---|" * len(SHAPES)
    nets = dict.fromkeys(outcome.fault.reference.net for outcome in outcomes)
    for net in nets:
        for precision in PRECISIONS:
            cells = []
            for shape in SHAPES:
                own = [
                    o
                    for o in outcomes
                    if (o.fault.reference.net, o.fault.reference.precision, o.fault.reference.shape)
                    == (net, precision, shape)
                ]
                cells.append(_cell(own))
            yield f"| {net} | {precision} | " + " | ".join(cells) + " |"
    yield ""
    scored = [o for o in outcomes if o.state == "scored"]
    for name, right in (("origin", "origin"), ("class", "cls"), ("verdict", "verdict")):
        count = sum(getattr(o, right) for o in scored)
        yield f"{name} right: {count} of {len(scored)}"
    for state in ("no bit", "unclear"):
        seeds = [o.fault.seed for o in outcomes if o.state == state]
        yield f"{state}: {len(seeds)} {seeds or ''}".rstrip()


def _cell(own: Sequence[Outcome]) -> str:
    scored = [o for o in own if o.state == "scored"]
    if not scored:
        return "–"
    return f"{sum(o.origin for o in scored)}, {sum(o.cls for o in scored)} of {len(scored)}"


if __name__ == "__main__":
    sys.exit(main())
