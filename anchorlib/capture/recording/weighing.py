"""What a step weighs, told once for each phase, with what would make it lighter.

    a step of run1 weighs 32 MB in 189 records (train), 310 MB in 93 records (eval) on rank 0;
    lighter: phases=("train",), steps=range(0, 100), mode=Summary

A phase is told of when the first step has ended in which something of it was recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from anchorlib.capture.recording.telling import tell
from anchorlib.names import escape
from anchorlib.scope import TRAIN

__all__ = ["Weighing", "Weight", "size_text"]

_HEAVY_STEP = 64 * 10**6  # bytes, from which a step is a warning
_LIGHT_STEP = 10**6  # bytes, below which nothing need be lighter
_MUCH = 0.3  # of a step, which is worth a word


class Weight(NamedTuple):
    """What one stream has recorded so far.

    nbytes: of the values that are kept. unlimited: it is recorded in all steps.
    """

    name: str
    phase: str
    records: int
    nbytes: int
    unlimited: bool


class Weighing:
    """Tells what the steps of one session weigh."""

    def __init__(self, run: str, rank: int, *, aloud: bool) -> None:
        self._where = (run, rank)
        self._aloud = aloud
        self._told: set[str] = set()

    def knows(self, phases: set[str]) -> bool:
        """Whether these phases were told of."""
        return phases <= self._told

    def tell(self, weights: Iterable[Weight]) -> None:
        """The first step has ended that has something of a new phase."""
        new = [one for one in weights if one.records and one.phase not in self._told]
        if not new:
            return
        self._told.update(one.phase for one in new)
        total = sum(one.nbytes for one in new)
        run, rank = self._where
        parts = ", ".join(_phase_text(phase, new) for phase in dict.fromkeys(o.phase for o in new))
        ways = _lighter(new, total) if total >= _LIGHT_STEP else []
        tell(
            "anchorlib: a step of run %s weighs %s on rank %d%s",
            run,
            parts,
            rank,
            f"; lighter: {', '.join(ways)}" if ways else "",
            level=logging.WARNING if total > _HEAVY_STEP else logging.INFO,
            aloud=self._aloud,
        )


def _phase_text(phase: str, weights: list[Weight]) -> str:
    own = [one for one in weights if one.phase == phase]
    records = sum(one.records for one in own)
    counted = f"{records:,} record{'' if records == 1 else 's'}"
    return f"{size_text(sum(one.nbytes for one in own))} in {counted} ({escape(phase)})"


def _lighter(weights: list[Weight], total: int) -> list[str]:
    """What would make these weights less, as it is written."""
    ways = []
    beside = sum(one.nbytes for one in weights if one.phase != TRAIN)
    if beside >= _MUCH * total:
        ways.append('phases=("train",)')
    if sum(one.nbytes for one in weights if one.unlimited) >= _MUCH * total:
        ways.append("steps=range(0, 100)")
    ways.append("mode=Summary")
    by_name: dict[str, int] = {}
    for one in weights:
        by_name[one.name] = by_name.get(one.name, 0) + one.nbytes
    heaviest = max(by_name, key=lambda name: by_name[name])
    share = by_name[heaviest] / total
    if share >= _MUCH and len(by_name) > 1:
        ways.append(f"tensors= without {escape(heaviest)} ({share:.0%} of it)")
    return ways


def size_text(nbytes: int) -> str:
    """A number of bytes as people read it."""
    size = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
