"""Pairs of whole trainings whose difference is known, and compare's answers about them.

Each case of a workload is trained at two of three seeds. Whole workloads are kept aside (`ASIDE`):
rules and thresholds are made by the others alone.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch

import anchorlib
from tests.diagnosis.training import perturbed, threads
from tests.diagnosis.workloads import WORKLOADS
from tests.diagnosis.workloads.base import Case, EndedError, Workload

ASIDE = (
    *("adversary", "automaton", "labeler", "filterer", "warper", "rememberer"),
    *("hasher", "oblivious", "pruner", "perceiver", "clusterer", "transporter"),
    *("anomaly", "dialogist", "depth", "consistency"),
    *("clicks", "poser"),
    *("selective", "radar", "rotations", "ecg", "selector"),
    *("teamwork", "parser", "nowcaster", "video", "topics"),
    *("swin", "linker", "listener", "folding"),
    *("reader", "talker", "pixels", "shopper"),
    *("slots", "semi", "cycler", "offline"),
    *("fewshot", "drifter", "simulator", "robust"),
    *("receptor", "splats", "quantiler", "dino"),
    *("continual", "reviewer", "pooler", "denoiser"),
    *("planner", "gflow", "convolver", "liner"),
    *("ordinal", "bidder", "imputer", "panoptic"),
    *("sentences", "energies", "convnext", "mixtures"),
    *("coteacher", "bandit", "sculptor", "spotter"),
)
"""The workloads that are kept aside since they were written, on 2026-11-28 and 29.

They are kinds of training that no rule was made by when they were judged: each row of them before
the next row was written. What compare answers is read as counts alone (`--held-out`), and
seldom: each reading teaches something, so that a part that was read too often says nothing any
more. It then joins the pairs that rules are made by, and new workloads take its place. These were
judged once, and each missed pair was looked at afterwards: the next judgement needs new ones. All
older workloads are tuned by: a third of the oldest pairs by a hash of workload and seed, which was
read five times; the translator, graph, diffusion, recommender and valuer, which were read twice;
speech, policy, experts, flow and forecast, read four times; and eleven parts that were read once:
detector to radiance; handwriter to points; composer to ranker; survivor to router; separator to
embedder; masker to hypernet; summarizer to retriever; captioner to fuser; preferrer to localizer;
doubter to juggler; and federator to solver.
"""
SEEDS = 3
NOISE = (1, 2, 3)
PATIENCE = 30
"""Seconds that the recorder of a killed training may take to store what it holds."""
BAD = ("not_rounding", "nonfinite")
SETTLED = ("identical", "expected")


@dataclass(frozen=True)
class Pair:
    """One case of one workload at one seed."""

    workload: str
    seed: int
    case: Case

    def __str__(self) -> str:
        return f"{self.workload}/{self.case.name}#{self.seed}"

    @property
    def reference(self) -> Workload:
        """What A trains."""
        return WORKLOADS[self.workload][0].but(self.case.reference)

    @property
    def changed(self) -> Workload:
        """What B trains."""
        return self.reference.but(self.case.changes)


@dataclass(frozen=True)
class Answer:
    """The answer of one comparison: its verdict, its sentence and the place it names.

    place: selector and step of the first origin that is no rounding, else of the first one.
    """

    verdict: str
    sentence: str
    place: str
    step: int
    origins: tuple[str, ...]
    told: str
    complete: bool
    seconds: float


@dataclass(frozen=True)
class Judged:
    """A pair with its two answers: alone, and with noise runs."""

    pair: Pair
    alone: Answer
    noise: Answer

    @property
    def kind(self) -> str:
        """The kind of the pair's case."""
        return self.pair.case.kind

    def origin(self, answer: Answer) -> bool:
        """Whether an answer points where an expert would."""
        case = self.pair.case
        named = any(fnmatchcase(answer.place, pattern) for pattern in case.origin)
        return named and case.step in (None, answer.step)

    @property
    def named(self) -> bool:
        """Whether either answer names the fix in words."""
        words = self.pair.case.words
        told = f"{self.alone.told}\n{self.noise.told}"
        return bool(words and re.search(words, told, re.IGNORECASE))

    @property
    def wrong(self) -> tuple[str, ...]:
        """The faults of the answers; none if all is well."""
        return tuple(_WRONG[self.kind](self))


def pairs() -> list[Pair]:
    """All pairs of all workloads."""
    return [
        Pair(workload, seed, case)
        for workload, (_, cases) in WORKLOADS.items()
        for seed in range(SEEDS)
        for case in cases
        if _hash(f"{workload} {case.name}") % SEEDS != seed
    ]


def held_out(pair: Pair) -> bool:
    """Whether the pair is held out: no rule and no threshold may be tuned by it.

    All pairs of the workloads in `ASIDE` are; every older workload is tuned by.
    """
    return pair.workload in ASIDE


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def judge(chosen: Sequence[Pair], store: Path) -> Iterator[Judged]:
    """Train and compare; pairs with the same A share it, and its noise runs."""
    groups: dict[Any, list[Pair]] = {}
    for pair in chosen:
        groups.setdefault((pair.workload, pair.seed, pair.reference), []).append(pair)
    for number, ((_, seed, reference), own) in enumerate(groups.items()):
        run = f"a{number}"
        record(reference, seed, run, store)
        for one in NOISE:
            record(reference, seed, run, store, f"{one}:{reference.eps_of_noise}")
        for at, pair in enumerate(own):
            other = f"b{number}.{at}"
            record(pair.changed, seed, other, store)
            yield Judged(
                pair,
                answer(run, other, store),
                answer(run, other, store, [f"{run}-noise{one}" for one in NOISE]),
            )


def record(workload: Workload, seed: int, run: str, store: Path, perturb: str = "") -> None:
    """Train once, recorded as `run`; a training that was told to die did."""
    if workload.killed_at is None:
        _record(workload, seed, run, store, perturb)
        return
    child = multiprocessing.get_context("spawn").Process(
        target=_record, args=(workload, seed, run, store)
    )
    child.start()
    child.join()
    until = time.monotonic() + PATIENCE
    while anchorlib.open_run(run, store).live is not False and time.monotonic() < until:
        time.sleep(0.1)  # what the recorder still holds


def _record(workload: Workload, seed: int, run: str, store: Path, perturb: str = "") -> None:
    start = partial(anchorlib.start, run, store=store)
    told = warnings.catch_warnings()
    with threads(workload.threads), perturbed(perturb), told, suppress(EndedError):
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)  # as in a process of its own: the header tells the seed at start
        workload.train(start, seed)


def answer(a: str, b: str, store: Path, noise: Sequence[str] = ()) -> Answer:
    """Compare's answer about two runs."""
    began = time.perf_counter()
    found = anchorlib.compare(a, b, store=store, noise=noise)
    seconds = time.perf_counter() - began
    bad = [origin for origin in found.origins if origin.cls in BAD]
    told = next(iter([*bad, *found.origins]), None)
    place = "" if told is None else f"{told.place.name}@{told.place.kind}"
    return Answer(
        found.verdict,
        found.sentence,
        place,
        -1 if told is None else told.place.step,
        tuple(
            f"{o.place.name}@{o.place.kind} step {o.place.step} pass {o.place.pass_index}: {o.cls} "
            f"{o.measure.error_eps:.3g} eps of {', '.join(o.ops[:4])} ({o.why})"
            for o in found.origins[:4]
        ),
        _told(found),
        found.complete.a and found.complete.b,
        seconds,
    )


def _told(found: Any) -> str:
    """All texts of a comparison, joined."""
    config = [f"{name} {pair[0]} | {pair[1]}" for name, pair in found.config_diff.items()]
    return "\n".join([found.sentence, repr(found), *found.notes, *config])


def _bug(judged: Judged) -> Iterator[str]:
    if not judged.origin(judged.alone):
        yield "origin"
    if judged.alone.verdict != "unexpected":
        yield f"{judged.alone.verdict} alone"
    if judged.noise.verdict != "unexpected":
        yield f"{judged.noise.verdict} with noise"
    if not judged.named:
        yield "fix not named"


def _benign(judged: Judged) -> Iterator[str]:
    if judged.alone.verdict == "unexpected":
        yield "false alarm alone"
    if judged.noise.verdict not in SETTLED:
        yield f"{judged.noise.verdict} with noise"


def _equal(judged: Judged) -> Iterator[str]:
    if judged.alone.verdict != "identical":
        yield judged.alone.verdict


def _data(judged: Judged) -> Iterator[str]:
    if not judged.origin(judged.alone):
        yield "origin"
    if judged.alone.verdict != "suspect":
        yield f"{judged.alone.verdict} alone"


def _incomplete(judged: Judged) -> Iterator[str]:
    if judged.alone.complete:
        yield "complete"


_WRONG: Mapping[str, Any] = {
    "bug": _bug,
    "benign": _benign,
    "equal": _equal,
    "data": _data,
    "incomplete": _incomplete,
}
