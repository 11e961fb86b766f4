"""The attempts that a store already has at a spool's rank, and the writer that continues them.

A spool may have been delivered in part. Its delivery goes on in the same attempt; or in a new one,
under a secret derived from the writer's own, where another attempt began in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anchorlib.claims import claim_of, heir_of
from anchorlib.errors import RunNotFoundError, StoreError
from anchorlib.store import RankReader, find_run
from anchorlib.wire import StoredStretch

__all__ = ["Heir", "PastAttempt", "heir_among", "past_attempts"]


class PastAttempt(NamedTuple):
    """One attempt at a rank in a store, which has `records` of it, from number `first` on."""

    claim: bytes
    records: int
    started_ns: int
    first: int = 0


class Heir(NamedTuple):
    """The writer that continues a spool's delivery behind earlier attempts of the same spool.

    secret: the writer's secret.
    base: how many records the earlier attempts brought.
    links: these attempts; their records have negative numbers, for the writer's own begin at 0.
    attempt: the number of the writer's own attempt. A store that resumes another one has changed.
    """

    secret: bytes
    base: int
    links: tuple[StoredStretch, ...]
    attempt: int


def past_attempts(run: str, rank: int, to: str, part: int = 0) -> Sequence[PastAttempt]:
    """The attempts at a rank that the store at `to` has, in the part of the rank that it holds."""
    try:
        located = find_run(run, to)
        reader = RankReader(located.location, rank, located.name, part)
    except RunNotFoundError:
        return ()
    except StoreError:
        return ()  # the writer that opens the damaged rank reports the damage
    attempts = reader.catalogue.attempts
    ends = [*(attempt.first_row for attempt in attempts[1:]), reader.committed]
    return [
        PastAttempt(attempt.claim, end - attempt.first_row, attempt.started_ns, attempt.first)
        for attempt, end in zip(attempts, ends, strict=True)
    ]


def heir_among(secret: bytes, attempts: Sequence[PastAttempt]) -> Heir | None:
    """The writer that continues the one with `secret`; None where it has no attempt there yet.

    attempts: all attempts at the rank, oldest first. Only the last of them can be continued. Where
    another attempt follows the writer's, the rest becomes a new attempt under the secret's heir;
    and so on along the chain of heirs, so that every interrupted delivery is found again.
    """
    known = {one.claim: number for number, one in enumerate(attempts)}
    if claim_of(secret) not in known:
        return None
    base = 0
    parts: list[StoredStretch] = []
    while (number := known.get(claim_of(secret), len(attempts))) < len(attempts) - 1:
        end = base + attempts[number].records
        parts.append(StoredStretch(number, base, end))
        base, secret = end, heir_of(secret)
    links = tuple(StoredStretch(number, first - base, end - base) for number, first, end in parts)
    return Heir(secret, base, links, number)
