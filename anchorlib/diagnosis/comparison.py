"""The answer of a comparison: frozen dataclasses, and their JSON in the documented schema."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from anchorlib.diagnosis import showing
from anchorlib.diagnosis.judgement import (
    COMPLETE,
    Completeness,
    Growth,
    Leaving,
    Losses,
    Nearness,
    Origin,
    Replay,
)
from anchorlib.diagnosis.notebook_page import NotebookPage
from anchorlib.diagnosis.pairing import Alignment, Counts, RecordPlace, Renaming, with_own_digests
from anchorlib.diagnosis.pairs import Pair, columns_of, pairs_of
from anchorlib.diagnosis.rank_spans import Ranks, ranks_of
from anchorlib.diagnosis.sizes import Measures
from anchorlib.errors import UnsupportedError
from anchorlib.operations import OpAlignment

if TYPE_CHECKING:
    import pandas as pd

    from anchorlib.reading import Run

__all__ = ["Comparison", "Divergence"]

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first record, in A's order of execution, that differs between the two runs.

    place: the record's name, kind and coordinates.
    order: the record's number in its rank's order of execution.
    identical_before: how many pairs come before the record; all of them are bit-identical.
    """

    place: RecordPlace
    order: int
    identical_before: int


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """The answer of a comparison of two runs, A and B.

    verdict: identical, expected, unexpected, suspect or incomparable.
    sentence: the answer, one sentence for people.
    origins: the records in which differences begin, each with its class and the reasons for it.
    config_diff: header entries that differ, by name: (A's, B's).
    growth: how many records of each kind differ at each step, and by how much.
    losses: from which step on the losses differ; None where the runs have no loss in common.
    renamed: the tensors that have different names in A and in B.
    step_offset: what to add to A's step to get B's.
    notes: what could not be decided, and why (windows, summaries, sampling, gaps): a line each.
    leaves_noise: the first record that differs by more than the noise runs explain; None without
        noise runs, or where there is no such record.
    complete: whether each run closed, went on as far as the other, and lost no record.
    incomplete: whether records are missing on which the answer depends (exit code 3).
    damaged: a line for each record whose stored values are damaged; it was judged by its summary.
    noise: the names of the noise runs, which should differ from A by rounding alone.
    reference: the third run to which both runs were compared at the origins; None where none was
        given.
    ops: the operations of both runs, aligned; None where one of them traced none.
    horizon: the first step from which the noise runs themselves differ so much that a drift has no
        meaning any more; None without noise runs, or where no step is such.
    alignment, measures, scores, roles: what `pairs` and `columns` are made from.
    runs: A and B as open runs, which `page` reads; None where `compare` did not open them.
    """

    a: str
    b: str
    verdict: str
    sentence: str
    counts: Counts
    first: Divergence | None
    origins: Sequence[Origin]
    config_diff: Mapping[str, tuple[Any, Any]]
    growth: Sequence[Growth]
    losses: Losses | None = None
    renamed: Sequence[Renaming] = ()
    step_offset: int = 0
    notes: Sequence[str] = ()
    leaves_noise: Leaving | None = None
    complete: Completeness = COMPLETE
    incomplete: bool = False
    damaged: Sequence[str] = ()
    noise: Sequence[str] = ()
    reference: str | None = None
    ops: OpAlignment | None = None
    horizon: int | None = None
    alignment: Alignment | None = field(default=None, repr=False, compare=False)
    measures: Measures | None = field(default=None, repr=False, compare=False)
    scores: Any = field(default=None, repr=False, compare=False)
    roles: Any = field(default=None, repr=False, compare=False)
    runs: tuple[Run, Run] | None = field(default=None, repr=False, compare=False)

    @property
    def ranks(self) -> Ranks | None:
        """Which ranks were compared, and which differ; None where fewer than two were compared."""
        return ranks_of(self.alignment)

    def pairs(self) -> Iterator[Pair]:
        """Yield every pair of matched records, in A's order of execution.

        Ranks that `compare` did not read, because digests showed them to be equal, are read now.
        """
        if self.alignment is None or self.measures is None:
            return iter(())
        return pairs_of(self._opened(), self.measures, scores=self.scores, roles=self.roles)

    def columns(self) -> Iterator[dict[str, list[Any]]]:
        """Yield the pairs of matched records as columns, some thousand pairs at a time.

        Each dict holds the lists of one such part, keyed by the fields of RecordPlace, Pair and
        Measure. The pairs come in A's order of execution. A pair that is equal has None for its
        measures. Ranks that `compare` did not read, because digests showed them to be equal, are
        read now.
        """
        if self.alignment is None or self.measures is None:
            return iter(())
        return columns_of(self._opened(), self.measures, scores=self.scores, roles=self.roles)

    def _opened(self) -> Alignment:
        """Return the alignment with the digests of all ranks, also of those that were not read."""
        assert self.alignment is not None
        if self.runs is None:
            return self.alignment
        tables = zip((self.alignment.a, self.alignment.b), self.runs, strict=True)
        a, b = (with_own_digests(table, run) for table, run in tables)
        return replace(self.alignment, a=a, b=b)

    def __repr__(self) -> str:
        return showing.lines(self)

    def _repr_html_(self) -> str:
        return showing.html(self)

    def page(self, *, height: int = 900) -> NotebookPage:
        """Return an HTML page of both runs with this comparison, for the output of a notebook cell.

        height: the height of the page's frame, in pixels.
        Raises UnsupportedError for a comparison that `compare` did not make of two runs.
        """
        if self.runs is None:
            raise UnsupportedError(
                "this comparison has no runs at hand: give them to anchorlib.report.show(a, b, "
                "comparisons=[comparison])"
            )
        # Imported by name: pages show comparisons, so the layer of pages lies above this layer.
        shown: NotebookPage = import_module("anchorlib.report").show(
            *self.runs, comparisons=[self], height=height
        )
        return shown

    def to_pandas(self) -> pd.DataFrame:
        """Return a pandas frame with a row for each of `pairs()`: its coordinates and measures.

        Raises MissingExtraError where pandas is not installed.
        """
        return showing.frame(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON values in the documented schema; NaN becomes None."""
        return {
            "schema_version": SCHEMA_VERSION,
            "a": self.a,
            "b": self.b,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "counts": {name: getattr(self.counts, name) for name in Counts.__slots__},
            "first": self._first(),
            "origins": [origin_dict(origin) for origin in self.origins],
            "config_diff": {name: list(pair) for name, pair in self.config_diff.items()},
            "growth": [
                {name: finite(getattr(growth, name)) for name in Growth.__slots__}
                for growth in self.growth
            ],
            "reference": self.reference,
            "leaves_noise": leaving_dict(self.leaves_noise),
            "complete": asdict(self.complete),
            "ops": None if self.ops is None else self.ops.to_dict(),
            "ranks": None if self.ranks is None else self.ranks.to_dict(),
            "notes": list(self.notes),
        }

    def _first(self) -> dict[str, Any] | None:
        if self.first is None:
            return None
        rest = {"order": self.first.order, "identical_before": self.first.identical_before}
        return {**place_dict(self.first.place), **rest}


def origin_dict(origin: Origin) -> dict[str, Any]:
    """Return one origin as JSON values in the documented schema."""
    measure = origin.measure
    return {
        **place_dict(origin.place),
        "class": origin.cls,
        "ops": list(origin.ops),
        "ops_a": list(origin.ops_a),
        "ops_b": list(origin.ops_b),
        "changed": list(origin.changed),
        "parents": list(origin.parents),
        "error_eps": finite(measure.error_eps),
        "share_differing": finite(measure.share_differing),
        "max_abs": finite(measure.max_abs),
        "max_ulp": origin.max_ulp,
        "where": origin.where or None,
        "why": origin.why,
        "replay": replay_dict(origin.replay),
        "reference": nearness_dict(origin.nearness),
        "amongst": origin.amongst,
    }


def replay_dict(replay: Replay | None) -> dict[str, Any] | None:
    """Return a replay (an operation computed again) as JSON values; None without a replay."""
    if replay is None:
        return None
    return {
        "a": list(replay.a),
        "b": list(replay.b),
        "error_a": finite(replay.error_a),
        "error_b": finite(replay.error_b),
        "nearer": replay.nearer,
    }


def nearness_dict(near: Nearness | None) -> dict[str, Any] | None:
    """Return how far A and B are from the reference run as JSON values; None without such a run."""
    if near is None:
        return None
    return {name: finite(value) for name, value in asdict(near).items()}


def leaving_dict(leaving: Leaving | None) -> dict[str, Any] | None:
    """Return the first record that differs by more than noise as JSON values.

    The dict has the record's coordinates, its score and its error in eps. None where there is no
    such record.
    """
    if leaving is None:
        return None
    figures = {"score": finite(leaving.score), "error_eps": finite(leaving.error_eps)}
    return {**place_dict(leaving.place), **figures}


def place_dict(place: RecordPlace) -> dict[str, Any]:
    """Return the name, kind and coordinates of a record as a dict."""
    return {name: getattr(place, name) for name in RecordPlace._fields}


def finite(value: Any) -> Any:
    """Return `value`, or None if it is a NaN or an infinity, which JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
