"""What verifying a run has found: damages and gaps, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from anchor_cli.exits import ExitCode
from anchor_cli.terminal import Screen, counted, size

if TYPE_CHECKING:
    from anchorlib.record import Gap

__all__ = ["Damage", "Verification"]

_FIGURES = ("run", "records", "values", "bytes", "unchecked")
_SHOWN = 20  # damaged values that are listed; --json names all


@dataclass(frozen=True, slots=True)
class Damage:
    """A damage that was found, with the reason in words.

    The damage concerns one record (its row in the table, its values, or the coordinates stored
    beside its values), or a rank as a whole. For a whole rank, name, kind and the fields after them
    are None; for a record, those that damage prevents from being read.
    """

    rank: int
    reason: str
    name: str | None = None
    kind: str | None = None
    mode: str | None = None
    step: int | None = None
    pass_index: int | None = None
    call: int | None = None
    phase: str | None = None
    attempt: int | None = None

    def line(self) -> str:
        """Returns the line that is printed: which record or rank is damaged, and how."""
        from anchorlib.names import escape, join

        if self.name is None or self.kind is None:
            return f"rank {self.rank}: {escape(self.reason)}"
        mode = escape(self.mode or "")
        return (
            f"{escape(join(self.name, self.kind))} ({mode}) rank {self.rank} step {self.step} "
            f"pass {self.pass_index} call {self.call}: {escape(self.reason)}"
        )


@dataclass(slots=True)
class Verification:
    """The result of verifying a run.

    records: the number of committed records, each of which has a row in its rank's table.
    values: the number of records whose values are kept; bytes: the size of these values.
    unchecked: how many rows have no checksum, because an older version wrote them.
    gaps: counts of observations that were not recorded.
    copied: for each rank whose files were copied while it was being written, how many rows are left
        out because the copy has only a part of them; keyed by rank.
    """

    run: str
    records: int
    values: int
    bytes: int
    unchecked: int
    damaged: list[Damage]
    gaps: list[Gap]
    copied: dict[int, int] = field(default_factory=dict)

    @property
    def code(self) -> ExitCode:
        """The exit code: 1 where something is damaged, else 3 where there are gaps, else 0."""
        if self.damaged:
            return ExitCode.DIFFERENCE
        return ExitCode.INCOMPLETE if self.gaps else ExitCode.DONE

    def as_json(self) -> dict[str, Any]:
        """Returns the result as a dict for `anchor verify --json`; it lists all damages."""
        return {
            **{name: getattr(self, name) for name in _FIGURES},
            "damaged": [asdict(one) for one in self.damaged],
            "gaps": [asdict(gap) for gap in self.gaps],
            "copied": [{"rank": rank, "left_out": rows} for rank, rows in self.copied.items()],
        }

    def lines(self, screen: Screen) -> Iterator[str]:
        """Yields the lines to print: at most 20 damages, at most 20 gaps, and the totals last."""
        from anchorlib.names import escape, join

        yield from (one.line() for one in self.damaged[:_SHOWN])
        if len(self.damaged) > _SHOWN:
            yield f"and {len(self.damaged) - _SHOWN} more: --json names them all"
        for gap in self.gaps[:_SHOWN]:
            steps = f"steps {gap.first_step}-{gap.last_step}"
            what = escape(join(gap.name, gap.kind))
            yield f"{what} lacks {gap.count} of {steps}: {escape(gap.reason)}"
        for rank, rows in self.copied.items():
            yield (
                f"rank {rank}: a copy of a run that was being written, up to its last commit; "
                f"{counted(rows, 'row')} written during the copy left out"
            )
        if self.unchecked:
            yield f"{self.unchecked} rows were made without checksums: only their values were read"
        unit = "" if screen.human else " bytes"
        verdict = f"{len(self.damaged)} damaged" if self.damaged else "all fit their digests"
        missing = f"; {sum(gap.count for gap in self.gaps)} not recorded" if self.gaps else ""
        yield (
            f"{self.run}: {self.values} values ({size(self.bytes, screen)}{unit}) "
            f"of {self.records} records: {verdict}{missing}"
        )
