"""How often compare was right about pairs of whole trainings: the table, and its targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from tests.diagnosis.pairs import SETTLED, Answer, Judged
from tests.diagnosis.workloads.base import KINDS

__all__ = ["Score", "report", "scores", "wrong"]

VERDICTS = ("unexpected", "suspect", "expected", "identical", "incomparable")


class Score(NamedTuple):
    """One thing that is counted: how many of how many, and the least share that is wanted.

    least: None where a share is stated and no target exists for it.
    """

    what: str
    count: int
    of: int
    least: float | None

    @property
    def missed(self) -> bool:
        """Whether the share is too small."""
        return self.least is not None and self.count < self.least * self.of

    def __str__(self) -> str:
        share = f" ({self.count / self.of:.0%})" if self.of else ""
        wanted = "" if self.least is None else f", target {self.least:.0%}"
        mark = ", MISSED" if self.missed else ""
        return f"{self.what}: {self.count} of {self.of}{share}{wanted}{mark}"


def scores(found: Sequence[Judged]) -> list[Score]:
    """All that is counted."""
    bugs, benign, equal, data, incomplete = ([j for j in found if j.kind == k] for k in KINDS)

    def of(what: str, own: Sequence[Judged], right: Iterable[bool], least: float) -> Score:
        return Score(what, sum(right), len(own), least)

    return [
        of("origin right, bugs", bugs, (j.origin(j.alone) for j in bugs), 0.97),
        of("origin right, other data", data, (j.origin(j.alone) for j in data), 0.97),
        of("bugs unexpected", bugs, (j.alone.verdict == "unexpected" for j in bugs), 0.9),
        of(
            "bugs unexpected with noise",
            bugs,
            (j.noise.verdict == "unexpected" for j in bugs),
            0.97,
        ),
        of("fix named in words", bugs, (j.named for j in bugs), 0.7),
        of("benign without a false alarm", benign, (not _alarm(j) for j in benign), 1.0),
        of("benign settled with noise", benign, (j.noise.verdict in SETTLED for j in benign), 0.85),
        of("equal pairs identical", equal, (j.alone.verdict == "identical" for j in equal), 1.0),
        of("ended early, and said", incomplete, (not j.wrong for j in incomplete), 1.0),
    ]


def _alarm(judged: Judged) -> bool:
    return "unexpected" in (judged.alone.verdict, judged.noise.verdict)


def report(found: Sequence[Judged]) -> Iterable[str]:
    """The table, in Markdown, and the scores."""
    yield "| kind | pairs | verdicts alone | verdicts with noise runs | origin right | all right |"
    yield "|---|---|---|---|---|---|"
    for kind in KINDS:
        own = [judged for judged in found if judged.kind == kind]
        if not own:
            continue
        origins = f"{sum(j.origin(j.alone) for j in own)}" if own[0].pair.case.origin else "–"
        yield (
            f"| {kind} | {len(own)} | {_verdicts(j.alone for j in own)} | "
            f"{_verdicts(j.noise for j in own)} | {origins} | {sum(not j.wrong for j in own)} |"
        )
    yield ""
    yield from map(str, scores(found))
    for name, answers in (
        ("alone", [j.alone for j in found]),
        ("with noise", [j.noise for j in found]),
    ):
        seconds = [answer.seconds for answer in answers]
        yield f"seconds {name}: median {median(seconds):.2f}, most {max(seconds):.2f}"


def _verdicts(answers: Iterable[Answer]) -> str:
    counts = Counter(answer.verdict for answer in answers)
    return ", ".join(f"{counts[one]} {one}" for one in VERDICTS if counts[one])


def wrong(judged: Judged) -> Iterable[str]:
    """What is wrong about a pair, with what compare said of it."""
    yield f"{judged.pair} ({judged.kind}): {'; '.join(judged.wrong)}"
    yield f"    alone: {judged.alone.verdict}: {judged.alone.sentence}"
    yield f"    noise: {judged.noise.verdict}: {judged.noise.sentence}"
    for origin in judged.alone.origins:
        yield f"        {origin}"
