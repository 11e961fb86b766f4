"""The answer about the ranks of a run: which differ from the others, are missing or ended early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Departure", "Early", "Evidence", "Outlier", "RankAnswer", "folded"]

Evidence = Literal["digest", "parting", "nan", "norm"]


@dataclass(frozen=True, slots=True)
class Departure:
    """One rank that differs from its peers, by one kind of evidence.

    It is an intermediate result, from which an `Outlier` is made. It mostly concerns one series.

    evidence: in what the rank differs, as for `Outlier`.
    rank, peers: the rank and the ranks that it was compared with, as indices in the grid's `ranks`.
    place: the grid's column of the first record that shows the difference.
    records: how many records show the difference.
    ratio: the rank's norm divided by its peers'; None unless the evidence is "norm".
    """

    evidence: Evidence
    rank: int
    place: int
    records: int
    peers: tuple[int, ...]
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Outlier:
    """Ranks that differ from their peers in the same way, and the first record that shows it.

    ranks: the numbers of the ranks that differ.
    evidence: "digest": the bits of a replicated tensor differ from those on the peers.
        "parting": ranks that agreed before do not agree any more, and no digest has a majority.
        "nan": NaN, or infinities in other kinds than "value", where most peers have none.
        "norm": a root mean square far from its peers', by the factor `ratio`.
    step, pass_index, call, phase, name, kind: of the first record that shows the difference.
    records: how many records show the difference.
    tensors: how many tensors (by name and kind) these records belong to.
    peers: the numbers of the ranks that the outlier was compared with; () for "parting".
    ratio: the outlier's norm divided by its peers'; None unless the evidence is "norm".
    """

    ranks: tuple[int, ...]
    evidence: Evidence
    step: int
    pass_index: int
    call: int
    phase: str
    name: str
    kind: str
    records: int
    tensors: int
    peers: tuple[int, ...]
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Early:
    """A rank whose last step comes before the last step of the run.

    last_step: the rank's last step.
    run_last_step: the last step that any rank of the run recorded.
    """

    rank: int
    last_step: int
    run_last_step: int


@dataclass(frozen=True, slots=True)
class RankAnswer:
    """The ranks of a run, and which of them differ from the others.

    run: the run's name.
    ranks: the ranks that have records.
    series: how many series (name, kind, mode and phase) were looked at.
    replicated: how many of these series the ranks hold alike.
    missing: ranks that recorded nothing, though the job had them.
    """

    run: str
    ranks: tuple[int, ...]
    series: int
    replicated: int
    outliers: tuple[Outlier, ...]
    missing: tuple[int, ...]
    ended_early: tuple[Early, ...]

    @property
    def complete(self) -> bool:
        """Whether every rank of the job recorded, and recorded to the last step of the run."""
        return not self.missing and not self.ended_early

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values: what `anchor ranks --json` prints."""
        return {"schema_version": 1, **asdict(self)}


def folded(outliers: Sequence[Outlier]) -> tuple[Outlier, ...]:
    """Return `outliers` with those combined that have the same evidence, peers and first record."""
    groups: dict[tuple[Any, ...], list[Outlier]] = {}
    for one in outliers:
        where = (one.step, one.pass_index, one.call, one.phase, one.name, one.kind)
        groups.setdefault((one.evidence, *where, one.peers), []).append(one)
    return tuple(_together(ones) for ones in groups.values())


def _together(ones: list[Outlier]) -> Outlier:
    first = ones[0]
    if len(ones) == 1:
        return first
    return Outlier(
        ranks=tuple(sorted({rank for one in ones for rank in one.ranks})),
        **{field: getattr(first, field) for field in _SAME},
        records=sum(one.records for one in ones),
        tensors=max(one.tensors for one in ones),
        ratio=max((one.ratio for one in ones if one.ratio is not None), default=None),
    )


_SAME = ("evidence", "step", "pass_index", "call", "phase", "name", "kind", "peers")
