"""Every state that can be reached, breadth first, and the laws that hold in all of them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.delivery.protocol.moves import Bounds, Move, Moves
from tests.delivery.protocol.rules import Rules
from tests.delivery.protocol.states import OTHER, State

LOST = "what was acknowledged is lost"
DOUBLED = "a record is stored twice, or out of order"
UNCONFIRMED = "what the store has not got was removed from a spool"
STUCK = "a fair end does not store everything"


@dataclass(slots=True)
class Found:
    """What an exploration came to: how many states and steps, and the first way to break a law."""

    states: int = 0
    steps: int = 0
    moves: Counter[str] = field(default_factory=Counter)
    broken: str = ""
    way: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.states} states, {self.steps} steps {self.broken} {self.way}"


def explored(bounds: Bounds, rules: Rules | None = None) -> Found:
    """Explore all states, until a law is broken."""
    rules = rules or Rules()
    moves, found = Moves(rules, bounds), Found()
    first = moves.first()
    came: dict[State, tuple[State, str] | None] = {first: None}
    backwards: dict[State, list[State]] = {}
    waiting = deque([first])
    ends: list[State] = []
    while waiting:
        state = waiting.popleft()
        found.states += 1
        quiet = True
        for move in moves.all(state):
            found.steps += 1
            found.moves[move.name] += 1
            if move.fair:
                quiet = False
                backwards.setdefault(move.state, []).append(state)
            if move.state not in came:
                came[move.state] = state, f"{move.name} {move.about}"
                waiting.append(move.state)
            if broken := _broken(state, move):
                found.broken, found.way = broken, list(_way(came, move.state))[::-1]
                return found
        if quiet and not any(state.spools):
            ends.append(state)
    return _ended(found, came, backwards, ends)


def _broken(before: State, move: Move) -> str:
    """The law that this step breaks; "" if it breaks none."""
    after = move.state
    own = [row for row in after.stored if row != OTHER]
    if any(not _in_order(one.rows) for one in after.attempts) or len(set(own)) < len(own):
        return DOUBLED
    gone = set(_held(before)) - set(_held(after))
    if not gone <= set(own) | after.erased:
        return UNCONFIRMED
    taken = set(range(max(before.ring, after.ring)))
    if not taken <= set(own) | after.erased | set(_held(after)):
        return LOST
    return ""


def _in_order(rows: tuple[int, ...]) -> bool:
    own = [row for row in rows if row != OTHER]
    return own == sorted(own)


def _held(state: State) -> Iterator[int]:
    for spool in state.spools:
        if spool is not None:
            for frame in spool.frames:
                yield from frame.rows


def _ended(
    found: Found,
    came: dict[State, tuple[State, str] | None],
    backwards: dict[State, list[State]],
    good: list[State],
) -> Found:
    """From each state steps that no fault keeps away lead to an end where no spool is left."""
    reaches = set(good)
    waiting = deque(good)
    while waiting:
        for before in backwards.get(waiting.popleft(), ()):
            if before not in reaches:
                reaches.add(before)
                waiting.append(before)
    bad = [one for one in came if one not in reaches]
    if bad:
        found.broken, found.way = STUCK, list(_way(came, bad[0]))[::-1]
    return found


def _way(came: dict[State, tuple[State, str] | None], state: State) -> Iterator[str]:
    step = came[state]
    while step is not None:
        state, name = step
        yield name
        step = came[state]
