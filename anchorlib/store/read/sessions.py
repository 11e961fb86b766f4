"""Puts together, from the parts of one rank, the attempts that belong to one recording session.

    rank3      attempt 0: session A, records 0–549    attempt 1: session B, 0–99
    rank3.p1   attempt 0: session A, 500–899
               ─▶ A: 0–899, the rank's attempt 0; B: 0–99, its attempt 1

A part is what one collector holds of the rank. A session is all that one writer records. Each part
to which the writer sends records lists the session as an attempt, with a number of the part's own.
A writer's claim, a hash of its secret, is equal in all parts: so the claim says which attempts are
of one session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from anchorlib.errors import StoreError
from anchorlib.names import escape
from anchorlib.store.format import ANEW, Attempt
from anchorlib.store.read.rank import RankReader
from anchorlib.store.read.spans import Share, Span, missing, spans

__all__ = ["WriterSession", "has_ended", "sessions_of"]

_HOW: Final = "read it with the address of every collector of the run (--store or ANCHOR_STORE)"


@dataclass(frozen=True, slots=True)
class WriterSession:
    """The records of one writer, in whichever parts (each at one collector) of the rank they are.

    number: the number of the session, counted from 0, under which the rank that is joined from all
        parts lists the session as an attempt.
    spans: from which part each record of the session is read, in the order of the records.
    attempts: (index of the part, attempt) for each attempt of the session, in the order in which
        they were made.
    """

    number: int
    spans: Sequence[Span]
    attempts: Sequence[tuple[int, Attempt]]


def sessions_of(parts: Sequence[RankReader], run: str) -> list[WriterSession]:
    """Return the sessions of a rank, ordered by the job's restarts, then by their start time.

    A session may have recorded the rank anew, in place of all earlier records: the sessions before
    the last such session are left out.

    parts: readers of what each collector holds of the rank, at least one. run: the run's name, for
        errors. Raises StoreError where records are missing between parts, and where two
        independent recordings were made under the run's name.
    """
    writers = _writers(parts)
    shares: dict[object, list[Share]] = {}
    for place, part in enumerate(parts):
        attempts = part.catalogue.attempts
        ends = [*(one.first_row for one in attempts[1:]), part.committed]
        for one, end in zip(attempts, ends, strict=True):
            last = one.first + max(end - one.first_row, 0)
            shares.setdefault(_writer(place, one), []).append(
                Share(one.first, last, place, one.number)
            )
    keys = sorted(writers, key=lambda key: _began(writers[key]))
    newest = max((at for at, key in enumerate(keys) if _is_anew(writers[key])), default=0)
    where = f"rank {parts[0].rank} of {escape(run)}"
    sessions = []
    for number, key in enumerate(keys[newest:]):
        own = sorted(writers[key], key=lambda one: (one[1].started_ns, one[1].number))
        read = spans(shares[key])
        _check_whole(missing(shares[key], read), where)
        if number and own[0][1].begins == "new":
            raise StoreError(
                f"{where} was recorded twice under this name, while a collector was away: read the "
                "collectors one by one, and rename one of the two (anchor mv)"
            )
        sessions.append(WriterSession(number, read, own))
    return sessions


def has_ended(parts: Sequence[RankReader]) -> bool:
    """Return whether the last session of a rank was closed, as far as these parts of the rank show.

    parts: readers of some or all parts of the rank. A session tells only the collector that it uses
    last that it is closed, so that the result is right if that collector's part is among `parts`.
    False where no part has an attempt.
    """
    writers = _writers(parts)
    if not writers:
        return False
    last = max(writers.values(), key=_began)
    last_attempts = [(parts[place].catalogue, attempt) for place, attempt in last]
    return any(
        one.state == "closed" and one.attempts[-1] == attempt for one, attempt in last_attempts
    )


def _writers(parts: Sequence[RankReader]) -> dict[object, list[tuple[int, Attempt]]]:
    """Return a list of (index of the part, attempt) for each session of a rank.

    The dict's keys are what `_writer` returns for the session. parts: readers of what each
        collector holds of the rank; indices count in this sequence.
    """
    attempts: dict[object, list[tuple[int, Attempt]]] = {}
    for place, part in enumerate(parts):
        for one in part.catalogue.attempts:
            attempts.setdefault(_writer(place, one), []).append((place, one))
    return attempts


def _writer(place: int, attempt: Attempt) -> object:
    """Return a key that is equal for the attempts of one session, in whichever parts they are.

    The key is the claim of the session's writer. In a rank that one collector holds alone, each
    attempt is a session of its own, and the key is (place, number of the attempt).
    place: the index, in a list of all parts of the rank, of the part that `attempt` is in.
    """
    return attempt.claim if attempt.begins else (place, attempt.number)


def _check_whole(hole: tuple[int, int] | None, where: str) -> None:
    if hole is not None:
        raise StoreError(
            f"records {hole[0]} to {hole[1] - 1} of {where} are not here: another collector has "
            f"them; {_HOW}"
        )


def _began(attempts: Sequence[tuple[int, Attempt]]) -> tuple[int, int]:
    """Return the key by which sessions are sorted: (how often the job was restarted, start time).

    The start time is in nanoseconds since the epoch. attempts: (index of the part, attempt) for
    each attempt of one session, whose smallest numbers are taken.
    """
    restarts = [attempt.restart or 0 for _, attempt in attempts]
    return min(restarts), min(attempt.started_ns for _, attempt in attempts)


def _is_anew(attempts: Sequence[tuple[int, Attempt]]) -> bool:
    return any(attempt.begins == ANEW for _, attempt in attempts)
