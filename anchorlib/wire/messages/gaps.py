"""Writes messages with gaps, and reads and checks them.

A gap says how many observations of a series were not recorded, and why.
"""

from __future__ import annotations

from collections.abc import Iterable

from anchorlib.modes import All
from anchorlib.record import Gap
from anchorlib.wire.messages.texts import check_reason, check_series
from anchorlib.wire.v1.collector_pb2 import Gap as WireGap
from anchorlib.wire.v1.collector_pb2 import Gaps

__all__ = ["gaps_message", "read_gaps"]


def gaps_message(gaps: Iterable[Gap]) -> Gaps:
    """Return the message that states `gaps`: how much of each series was not recorded, and why."""
    return Gaps(
        gaps=[
            WireGap(
                name=gap.name,
                kind=gap.kind,
                mode=gap.mode,
                reason=check_reason(gap.reason),
                count=gap.count,
                first_step=gap.first_step,
                last_step=gap.last_step,
            )
            for gap in gaps
        ]
    )


def read_gaps(message: Gaps) -> list[Gap]:
    """Return the gaps that a message states: how much of each series was not recorded, and why.

    Raises InvalidNameError if the name or kind of a gap is invalid, ModeError if its mode is.
    """
    return [
        Gap(
            *_series(gap),
            check_reason(gap.reason),
            gap.count,
            gap.first_step,
            gap.last_step,
        )
        for gap in message.gaps
    ]


def _series(gap: WireGap) -> tuple[str, str, str]:
    """Check the series that a gap is about, and return its (name, kind, mode).

    The mode "" is valid: the observations were skipped before their mode was known. Raises
    InvalidNameError for an invalid name or kind, ModeError for an invalid mode.
    """
    name, kind, _ = check_series(gap.name, gap.kind, gap.mode or str(All()))
    return name, kind, gap.mode
