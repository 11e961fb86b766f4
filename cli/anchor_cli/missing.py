"""What an answer lacks: observations that the run counted as gaps instead of recording them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from anchor_cli.selection import Selection
from anchorlib.errors import UnknownTensorError
from anchorlib.names import escape, join, select

if TYPE_CHECKING:
    from anchor_cli.selected import Selected
    from anchorlib import Run
    from anchorlib.record import Gap

__all__ = ["lost"]

Pair = tuple[str, str]


def lost(
    run: Run, selectors: Sequence[str], found: Sequence[Selected], selection: Selection
) -> str:
    """What was never recorded of the selected tensors and steps, as a sentence; "" for nothing.

    A gap also counts records whose values alone were left out: those rows are there, with their
    summaries, and are subtracted.
    """
    gaps: dict[Pair, list[Gap]] = {}
    for gap in run.gaps(selection.rank):
        gaps.setdefault((gap.name, gap.kind), []).append(gap)
    return "; ".join([*_of_tensors(gaps, found, selection), *_of_none(run, gaps, selectors, found)])


def _of_tensors(
    gaps: dict[Pair, list[Gap]], found: Iterable[Selected], selection: Selection
) -> Iterator[str]:
    """Tensors that have records, but not all."""
    for part in found:
        info = part.info
        those = [g for g in gaps.get((info.name, info.kind), ()) if g.mode in ("", info.mode)]
        missing = sum(gap.count for gap in those)
        if info.mode != "summary":
            missing -= sum(int((~one.kept).sum()) for one in part.whole)
        if missing > 0 and any(selection.meets(g.first_step, g.last_step) for g in those):
            yield f"{part.title} lacks {missing} records of {_where(those)}"


def _of_none(
    run: Run, gaps: dict[Pair, list[Gap]], selectors: Sequence[str], found: Sequence[Selected]
) -> Iterator[str]:
    """Tensors that the selectors name and that have no record at all."""
    if not gaps:
        return
    names = {part.info.name for part in found}
    recorded = {(info.name, info.kind) for info in run.tensors()}
    for selector in selectors:
        with contextlib.suppress(UnknownTensorError):
            for pair in select([selector], gaps):
                # Of a name that is answered for, the kinds that were not asked for are no gap.
                if pair not in recorded and pair[0] not in names:
                    yield f"{escape(join(*pair))} has no record: lost were {_where(gaps[pair])}"


def _where(gaps: Sequence[Gap]) -> str:
    first, last = min(gap.first_step for gap in gaps), max(gap.last_step for gap in gaps)
    reasons = ", ".join(dict.fromkeys(escape(gap.reason) for gap in gaps))
    return f"steps {first}-{last} ({reasons})"
