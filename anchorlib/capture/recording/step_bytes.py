"""The weight of a step (the bytes it records), logged once for each phase, with ways to lower it.

    a step of run1 weighs 32 MB in 189 records (train), 310 MB in 93 records (eval) on rank 0;
    lighter: phases=("train",), steps=range(0, 100), mode=Summary

The weight of a phase is logged at the end of the first step that recorded anything in that phase.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from anchorlib.capture.recording.log_lines import tell
from anchorlib.names import escape
from anchorlib.scope import TRAIN

__all__ = ["StepBytes", "StreamBytes", "size_text"]

_HEAVY_STEP = 64 * 10**6  # bytes above which the line is a warning
_LIGHT_STEP = 10**6  # bytes below which no way to lower the weight is suggested
_MUCH = 0.3  # the part of a step's bytes that a way must save to be suggested


class StreamBytes(NamedTuple):
    """How much one stream (a tensor and kind, in one mode and phase) has recorded so far.

    name: the tensor's name. records: the number of records. nbytes: the bytes of their values; 0 in
        the mode Summary, which keeps none. unlimited: whether the stream records in all steps.
    """

    name: str
    phase: str
    records: int
    nbytes: int
    unlimited: bool


class StepBytes:
    """Logs how many bytes the steps of one session record, once for each phase.

    aloud: whether the line is written to stderr where the program has not set up logging.
    """

    def __init__(self, run: str, rank: int, *, aloud: bool) -> None:
        self._where = (run, rank)
        self._aloud = aloud
        self._logged: set[str] = set()

    def knows(self, phases: set[str]) -> bool:
        """Return whether `tell` has logged the bytes of a step for all these phases."""
        return phases <= self._logged

    def tell(self, weights: Iterable[StreamBytes]) -> None:
        """Log how much the ended step has recorded, in each phase not logged before.

        Nothing is logged if there is no such phase.

        weights: how much each stream has recorded since the session began. To be called as each
            step ends, so that a new phase has the records of one step.
        """
        new = [one for one in weights if one.records and one.phase not in self._logged]
        if not new:
            return
        self._logged.update(one.phase for one in new)
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


def _phase_text(phase: str, weights: list[StreamBytes]) -> str:
    own = [one for one in weights if one.phase == phase]
    records = sum(one.records for one in own)
    counted = f"{records:,} record{'' if records == 1 else 's'}"
    return f"{size_text(sum(one.nbytes for one in own))} in {counted} ({escape(phase)})"


def _lighter(weights: list[StreamBytes], total: int) -> list[str]:
    """Return arguments of `start`, as a user writes them, that would lower the bytes of a step.

    weights: how much each stream (tensor, kind, mode and phase) has recorded. total: the sum of the
        streams' bytes.
    """
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
    """Return a number of bytes as text in decimal units: "12 MB", "1.5 kB"."""
    size = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
