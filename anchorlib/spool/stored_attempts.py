"""The attempts that a store already has at a spool's rank, and the writer that continues them.

An attempt is one recording of a rank, by one writer; a resumed training begins another. A spool may
have been delivered in part before. Its delivery then goes on in the same attempt; or, if another
attempt began in between, in a new attempt, under a secret derived from the writer's secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anchorlib.claims import claim_of, next_secret
from anchorlib.errors import RunNotFoundError, StoreError
from anchorlib.store import RankReader, find_run
from anchorlib.wire import StoredRange

__all__ = ["Heir", "PastAttempt", "heir_among", "past_attempts"]


class PastAttempt(NamedTuple):
    """An attempt (one recording of a rank) that a store has.

    claim: the hash of its writer's secret. records: how many of its records the store has.
    started_ns: when it began, in nanoseconds since the epoch.
    first: the number that its first record in the store has for the writer; above 0 where another
    collector has the records before.
    """

    claim: bytes
    records: int
    started_ns: int
    first: int = 0


class Heir(NamedTuple):
    """The writer under which the delivery of a spool goes on, after earlier deliveries in part.

    secret: the writer's secret.

    base: how many of the spool's records lie in attempts of earlier deliveries that can no longer
        be continued.
    links: for each of these attempts the range of its records, in numbers below 0: number 0 is the
        first record of the attempt in which the delivery goes on.
    attempt: the number that the store must give to this writer's attempt. If the store gives
        another number, it was changed in between.
    """

    secret: bytes
    base: int
    links: tuple[StoredRange, ...]
    attempt: int


def past_attempts(run: str, rank: int, to: str, part: int = 0) -> Sequence[PastAttempt]:
    """Return the attempts (recordings) of a rank that the store at `to` has, oldest first.

    Returns () if the store has no attempts of this run and rank, or if the rank cannot be read.
    Raises CollectorError if a collector does not answer or refuses.

    part: the number of the part of the rank that the store holds, where several collectors have
        recorded one rank, one after the other; else 0.
    """
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
    """Return the writer under which the delivery of a spool continues.

    Return None if no attempt is of the spool's writer: then no earlier delivery has begun. Only the
    last attempt of a rank can be continued. If another attempt follows the writer's attempt, the
    rest of the writer's records becomes a new attempt, under the secret that `next_secret` derives
    from the writer's. If this new attempt was interrupted and followed by another attempt too, a
    third secret is derived from its secret, and so forth. So every interrupted delivery is found
    again.

    secret: the secret of the spool's writer. attempts: all attempts (recordings) of the rank,
        oldest first.
    """
    known = {one.claim: number for number, one in enumerate(attempts)}
    if claim_of(secret) not in known:
        return None
    base = 0
    parts: list[StoredRange] = []
    while (number := known.get(claim_of(secret), len(attempts))) < len(attempts) - 1:
        end = base + attempts[number].records
        parts.append(StoredRange(number, base, end))
        base, secret = end, next_secret(secret)
    links = tuple(StoredRange(number, first - base, end - base) for number, first, end in parts)
    return Heir(secret, base, links, number)
