"""What a store has already of the rank that a spool is of, and as whom the spool goes on there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anchorlib.claims import claim_of, heir_of
from anchorlib.errors import RunNotFoundError, StoreError
from anchorlib.store import RankReader, find_run
from anchorlib.wire import Link

__all__ = ["Heir", "PastAttempt", "heir_among", "past_attempts"]


class PastAttempt(NamedTuple):
    """What a store has of one attempt at a rank: `records` of it, from number `first` on."""

    claim: bytes
    records: int
    started_ns: int
    first: int = 0


class Heir(NamedTuple):
    """As which writer a spool goes on.

    base: records that its earlier attempts brought.
    links: those attempts, numbered so that the writer itself begins at 0.
    attempt: the number of its own. Where it is given another one, the chain is not there any more.
    """

    secret: bytes
    base: int
    links: tuple[Link, ...]
    attempt: int


def past_attempts(run: str, rank: int, to: str, part: int = 0) -> Sequence[PastAttempt]:
    """The attempts at this rank that the store has, in that part of the rank that it holds."""
    try:
        found = find_run(run, to)
        one = RankReader(found.location, rank, found.name, part)
    except RunNotFoundError:
        return ()
    except StoreError:
        return ()  # what is damaged there, the writer will say
    attempts = one.catalogue.attempts
    ends = [*(attempt.first_row for attempt in attempts[1:]), one.committed]
    return [
        PastAttempt(attempt.claim, end - attempt.first_row, attempt.started_ns, attempt.first)
        for attempt, end in zip(attempts, ends, strict=True)
    ]


def heir_among(secret: bytes, attempts: Sequence[PastAttempt]) -> Heir | None:
    """As whom the writer with this secret goes on behind these attempts; None for the first.

    Where another attempt was made since, what is left comes as a new one: the next link of a chain
    that begins with the writer itself, so that a delivery that is cut short is taken up again.
    """
    known = {one.claim: number for number, one in enumerate(attempts)}
    if claim_of(secret) not in known:
        return None
    base = 0
    parts: list[Link] = []
    while (number := known.get(claim_of(secret), len(attempts))) < len(attempts) - 1:
        end = base + attempts[number].records
        parts.append(Link(number, base, end))
        base, secret = end, heir_of(secret)
    links = tuple(Link(number, first - base, end - base) for number, first, end in parts)
    return Heir(secret, base, links, number)
