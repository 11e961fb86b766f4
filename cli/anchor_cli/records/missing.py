"""Warns of what a command's answer lacks: observations that the run could not record.

A run counts them as gaps, by tensor, steps and reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from anchor_cli.arguments import Selection
from anchor_cli.exits import ExitCode
from anchor_cli.records.tensor_records import SelectedRecords
from anchor_cli.terminal import counted, note, steps_of
from anchorlib.errors import UnknownTensorError
from anchorlib.names import escape, join, select
from anchorlib.record import UNKNOWN

if TYPE_CHECKING:
    from anchorlib import Run, TensorInfo
    from anchorlib.record import Gap

__all__ = ["Gaps", "answered", "clauses_of", "lost"]

Pair = tuple[str, str]
_MOST = 5  # tensors that one line names


class Gaps:
    """The gaps of a run, or of one rank of it, by tensor and kind.

    A gap counts observations that could not be recorded, or not with their values.
    """

    def __init__(self, run: Run, rank: int | None = None) -> None:
        self._run = run
        self._of_pair: dict[Pair, list[Gap]] = {}
        for gap in run.gaps(rank):
            self._of_pair.setdefault((gap.name, gap.kind), []).append(gap)

    def of(self, info: TensorInfo) -> list[Gap]:
        """Returns the gaps of a tensor; a gap without a known mode counts for every mode."""
        those = self._of_pair.get((info.name, info.kind), ())
        return [gap for gap in those if gap.mode in ("", info.mode)]

    def count(self, info: TensorInfo) -> int:
        """Returns how many observations of a tensor were not recorded, or not with values."""
        return sum(gap.count for gap in self.of(info))

    @property
    def of_unknown(self) -> list[Gap]:
        """The gaps that count lost records whose tensor is not known."""
        pair = (UNKNOWN, "value")
        return [] if pair in _recorded(self._run) else self._of_pair.get(pair, [])

    @property
    def total(self) -> int:
        """How many observations of all tensors were not recorded, or not with their values."""
        return sum(gap.count for those in self._of_pair.values() for gap in those)

    def unrecorded(self, selectors: Sequence[str] = ("*",)) -> dict[Pair, list[Gap]]:
        """Returns the selected tensors that have gaps and no record at all, with their gaps.

        The gaps are keyed by the tensor's (name, kind). A selector that matches no tensor with gaps
        adds nothing.
        """
        recorded = _recorded(self._run) if self._of_pair else ()
        lost_pairs: dict[Pair, list[Gap]] = {}
        for selector in selectors:
            with contextlib.suppress(UnknownTensorError):
                lost_pairs |= {
                    pair: self._of_pair[pair] for pair in select([selector], self._of_pair)
                }
        return {pair: those for pair, those in lost_pairs.items() if pair not in recorded}


def _recorded(run: Run) -> set[Pair]:
    return {(info.name, info.kind) for info in run.tensors()}


def lost(
    run: Run, selectors: Sequence[str], chosen: Sequence[SelectedRecords], selection: Selection
) -> str:
    """Returns a sentence about selected observations that were not recorded; "" for none.

    A gap also counts records of which only the values were left out: these records exist, with
    their summaries, and are subtracted.

    chosen: the records that the selectors and the selection found.
    """
    gaps = Gaps(run, selection.rank)
    names = {part.info.name for part in chosen}
    # Where one kind of a name was found, its other kinds were not asked for and are no gap.
    names.add(UNKNOWN)  # reported by `_of_any`
    others = {p: g for p, g in gaps.unrecorded(selectors).items() if p[0] not in names}
    return "; ".join(
        [*_of_tensors(gaps, chosen, selection), *clauses_of(others), *_of_any(gaps, selection)]
    )


def answered(problem: str) -> ExitCode:
    """Prints on stderr what a command's answer lacks, and returns the command's exit code.

    problem: what is lacking, as a sentence; with "" nothing is printed and the code is 0, else 3.
    """
    if not problem:
        return ExitCode.DONE
    note(f"incomplete: {problem}")
    return ExitCode.INCOMPLETE


def _of_tensors(
    gaps: Gaps, chosen: Iterable[SelectedRecords], selection: Selection
) -> Iterator[str]:
    """Yields a clause for each chosen tensor that has lost records which may have been selected.

    These are records of a gap whose steps meet the selected steps.
    """
    for part in chosen:
        those = gaps.of(part.info)
        missing = sum(gap.count for gap in those)
        if part.info.mode != "summary":
            missing -= sum(int((~one.kept).sum()) for one in part.whole)
        if missing > 0 and any(selection.meets(g.first_step, g.last_step) for g in those):
            yield f"{part.title} lacks {counted(missing, 'record')} of {_where(those)}"


def _of_any(gaps: Gaps, selection: Selection) -> Iterator[str]:
    """Yields a clause about lost records of which the tensor is not known, if there are any.

    Each answer about steps in which such records were lost may lack some of them.
    """
    those = [gap for gap in gaps.of_unknown if selection.meets(gap.first_step, gap.last_step)]
    if those:
        missing = counted(sum(gap.count for gap in those), "record")
        yield f"{missing} of unknown tensors are lost at {_where(those)}"


def clauses_of(unrecorded: dict[Pair, list[Gap]]) -> Iterator[str]:
    """Yields a clause for each of the first five tensors, and a clause that counts the others.

    unrecorded: the gaps of the tensors without any record, keyed by (name, kind).
    """
    for pair in list(unrecorded)[:_MOST]:
        yield f"{escape(join(*pair))} has no record: lost at {_where(unrecorded[pair])}"
    if len(unrecorded) > _MOST:
        yield f"{len(unrecorded) - _MOST:,} more have none"


def _where(gaps: Sequence[Gap]) -> str:
    first, last = min(gap.first_step for gap in gaps), max(gap.last_step for gap in gaps)
    reasons = ", ".join(dict.fromkeys(escape(gap.reason) for gap in gaps))
    return f"{steps_of(first, last)} ({reasons})"
