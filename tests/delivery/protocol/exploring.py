"""Every state that can be reached, breadth first, and the laws that hold in all of them."""

from __future__ import annotations

import gc
from collections import Counter, defaultdict, deque
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
    """Explore all states, until a law is broken.

    Meanwhile no garbage is collected: states are values without cycles, and looking through some
    hundred thousand of them again and again takes as long as exploring them.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return _Exploration(Moves(rules or Rules(), bounds)).found()
    finally:
        if collects:
            gc.enable()


class _Exploration:
    """The states that were reached, each with a number: the hash of a state is looked up once."""

    def __init__(self, moves: Moves) -> None:
        self._moves = moves
        self._found = Found()
        self._states = [moves.first()]
        self._numbers = {self._states[0]: 0}
        self._came: list[tuple[int, str] | None] = [None]
        self._backwards: defaultdict[int, list[int]] = defaultdict(list)
        self._ends: list[int] = []

    def found(self) -> Found:
        """What all states and steps come to."""
        found = self._found
        for number, state in enumerate(self._states):  # which grows meanwhile
            found.states += 1
            quiet = True
            for move in self._moves.all(state):
                found.steps += 1
                found.moves[move.name] += 1
                reached = self._number(number, move)
                if move.fair:
                    quiet = False
                    self._backwards[reached].append(number)
                if broken := _broken(state, move.state):
                    return self._ended(broken, reached)
            if quiet and not any(state.spools):
                self._ends.append(number)
        return self._ended(STUCK, stuck) if (stuck := self._stuck()) is not None else found

    def _number(self, before: int, move: Move) -> int:
        """The number of the state that a move from the state number `before` leads to."""
        number = self._numbers.setdefault(move.state, len(self._states))
        if number == len(self._states):
            self._states.append(move.state)
            self._came.append((before, f"{move.name} {move.about}"))
        return number

    def _stuck(self) -> int | None:
        """The first state from which no steps lead to an end where no spool is left.

        Only steps count that no fault keeps away.
        """
        reaches = set(self._ends)
        waiting = deque(self._ends)
        while waiting:
            for before in self._backwards[waiting.popleft()]:
                if before not in reaches:
                    reaches.add(before)
                    waiting.append(before)
        return next((n for n in range(len(self._states)) if n not in reaches), None)

    def _ended(self, broken: str, number: int) -> Found:
        """What was found where the state `number` breaks a law."""
        self._found.broken = broken
        step = self._came[number]
        while step is not None:
            number, name = step
            self._found.way.insert(0, name)
            step = self._came[number]
        return self._found


def _broken(before: State, after: State) -> str:
    """The law that this step breaks; "" if it breaks none."""
    if _judged(before) == _judged(after):  # which broke none: it was the end of a step itself
        return ""
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


def _judged(state: State) -> tuple[object, ...]:
    """All of a state that the laws look at."""
    return state.ring, state.spools, state.attempts, state.erased


def _in_order(rows: tuple[int, ...]) -> bool:
    own = [row for row in rows if row != OTHER]
    return own == sorted(own)


def _held(state: State) -> Iterator[int]:
    for spool in state.spools:
        if spool is not None:
            for frame in spool.frames:
                yield from frame.rows
