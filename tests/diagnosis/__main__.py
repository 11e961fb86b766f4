"""Prints how many known differences compare finds, and how often it raises a false alarm.

python -m tests.diagnosis                       # all that may be tuned by: make diagnosis
python -m tests.diagnosis --part 1/2            # every second part of it
python -m tests.diagnosis --only 'gan/*'        # pairs of trainings by name, with what was said
python -m tests.diagnosis --list                # the names
python -m tests.diagnosis --held-out            # the pairs that nothing is tuned by: counts alone
python -m tests.diagnosis --planted --faults 12 # planted faults alone, of one seed
python -m tests.diagnosis --operations          # what is said of traced operations, alone
python -m tests.diagnosis --graft 0:112         # several faults a training, in one grafted rerun
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from tests.diagnosis import grafts, operations, planted, scores
from tests.diagnosis.pairs import Judged, Pair, held_out, judge, pairs


def main() -> int:
    """Train, compare and count; return 1 if a target is missed."""
    options = _options()
    chosen = _chosen(options)
    if options.list:
        print("\n".join(f"{pair} {pair.case.kind}" for pair in chosen))
        return 0
    torch.set_num_threads(1)
    began = time.monotonic()
    if options.graft is not None:
        return _grafted(options.graft)
    one, parts = options.part
    if options.operations:
        return int(_operations(options.nets))
    missed = False
    if not (options.only or options.held_out):
        missed |= _planted(options, one, parts)
    if not options.planted:
        missed |= _pairs(chosen, tells=not options.held_out)
    print(f"\ntorch {torch.__version__}, {time.monotonic() - began:.0f} s")
    return int(missed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="PATTERN", help="pairs by name, as gpt/*#1")
    parser.add_argument("--list", action="store_true", help="names and kinds of the pairs")
    parser.add_argument("--held-out", action="store_true", help="the pairs that were kept aside")
    parser.add_argument("--planted", action="store_true", help="planted faults and controls alone")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="I/N")
    parser.add_argument("--faults", type=_seeds, default=range(135), metavar="A[:B]")
    parser.add_argument("--scenes", type=_seeds, default=range(12), metavar="A[:B]")
    parser.add_argument("--autocast", type=_seeds, default=range(6), metavar="A[:B]")
    parser.add_argument("--operations", action="store_true", help="traced operations alone")
    parser.add_argument("--nets", type=_seeds, default=range(150), metavar="A[:B]")
    parser.add_argument("--graft", type=_seeds, metavar="A[:B]", help="grafted reruns alone")
    parser.add_argument("--compiled", type=int, default=3, help="how many scenes are compiled too")
    return parser.parse_args()


def _operations(seeds: range) -> bool:
    """Score the answers about operations: nets of modules and of one, compilers, trainings."""
    found = [
        *operations.scores(seeds, large=False),
        *operations.scores(seeds, large=True),
        operations.decomposed(),
        *operations.of_trainings(),
    ]
    print("\n".join(map(str, found)))
    print(f"\nseeds: nets {_span(seeds)}")
    return any(score.missed for score in found)


def _seeds(text: str) -> range:
    first, colon, stop = text.partition(":")
    return range(int(first), int(stop) if colon else int(first) + 1)


def _part(text: str) -> tuple[int, int]:
    one, _, parts = text.partition("/")
    if not 1 <= int(one) <= int(parts):
        raise argparse.ArgumentTypeError(f"{text} is not I/N with I from 1 to N")
    return int(one), int(parts)


def _chosen(options: argparse.Namespace) -> list[Pair]:
    """The pairs that the options select; pairs of one workload and seed stay together."""
    found = [
        pair
        for pair in pairs()
        if held_out(pair) == options.held_out and fnmatchcase(str(pair), options.only or "*")
    ]
    groups = list(dict.fromkeys((pair.workload, pair.seed) for pair in found))
    one, parts = options.part
    own = set(groups[one - 1 :: parts])
    return [pair for pair in found if (pair.workload, pair.seed) in own]


def _planted(options: argparse.Namespace, one: int, parts: int) -> bool:
    faults, scenes, autocast = (
        seeds[len(seeds) * (one - 1) // parts : len(seeds) * one // parts]
        for seeds in (options.faults, options.scenes, options.autocast)
    )
    found = list(planted.outcomes(faults))
    raised = list(planted.alarms(scenes, autocast, options.compiled))
    print("\n".join(planted.report(found, raised)))
    print(
        f"\nseeds: faults {_span(faults)}, scenes {_span(scenes)} (those under "
        f"{options.compiled} compiled too), autocast {_span(autocast)}\n"
    )
    return planted.missed(found, raised)


def _span(seeds: range) -> str:
    return f"{seeds.start}-{seeds.stop - 1}" if seeds else "none"


def _grafted(seeds: range) -> int:
    found = list(grafts.outcomes(seeds))
    print("\n".join(grafts.report(found)))
    print(f"\nseeds: {_span(seeds)}, torch {torch.__version__}")
    return int(grafts.missed(found))


def _pairs(chosen: Sequence[Pair], *, tells: bool) -> bool:
    """tells: whether what is wrong is told, pair by pair."""
    found: list[Judged] = []
    with tempfile.TemporaryDirectory() as store:
        for judged in judge(chosen, Path(store)):
            found.append(judged)
            if judged.wrong and tells:
                print("\n".join(scores.wrong(judged)), file=sys.stderr, flush=True)
    if not found:
        print("no pair has such a name", file=sys.stderr)
        return True
    print("\n".join(scores.report(found)))
    return any(score.missed for score in scores.scores(found))


if __name__ == "__main__":
    sys.exit(main())
