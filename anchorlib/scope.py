"""Which phases and steps are recorded: `phases=("train",)`, `steps=range(0, 3)`.

    ANCHOR_PHASES=train,eval
    ANCHOR_STEPS=0:3,10,100:1000:50,2000:      first:end:stride, as range; no end: all later steps

A watched model may have a separate scope, but only within the session's scope: phases and steps
that the session leaves out are never recorded.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from anchorlib.errors import AnchorError, OptionError
from anchorlib.names import check_name, quoted

__all__ = [
    "ANYTHING",
    "EVAL",
    "NO_GRAD",
    "TRAIN",
    "PhasesSpec",
    "Scope",
    "Steps",
    "StepsSpec",
    "scope",
]

TRAIN, EVAL, NO_GRAD = "train", "eval", "no_grad"  # phases that need no `session.phase(name)`

PhasesSpec: TypeAlias = "str | Sequence[str]"
StepsSpec: TypeAlias = "int | range | Sequence[int | range]"

_NOTHING: Mapping[str, str] = {}
_PART = re.compile(r"(\d{1,18})|(\d{0,18}):(\d{0,18})(?::(\d{1,18}))?")


@dataclass(frozen=True, slots=True)
class Steps:
    """A set of steps: those that lie in at least one range of each group.

    groups: the ranges of each of the scopes that were intersected, one group for each scope; a
    scope that was not intersected has one group.
    """

    groups: tuple[tuple[range, ...], ...]

    def __contains__(self, step: int) -> bool:
        """Return whether `step` belongs to the set."""
        return all(any(step in one for one in group) for group in self.groups)

    @property
    def last(self) -> int:
        """A step after which no step belongs to the set; need not belong to the set itself."""
        return min(max(max(one[0], one[-1]) for one in group) for group in self.groups)


@dataclass(frozen=True, slots=True)
class Scope:
    """The phases and the steps that are recorded.

    phases: names of phases; None for all phases. steps: None for all steps.
    """

    phases: frozenset[str] | None = None
    steps: Steps | None = None

    def has_phase(self, phase: str) -> bool:
        """Return whether records of `phase` are wanted."""
        return self.phases is None or phase in self.phases

    def records_nothing(self, step: int, phase: str) -> bool:
        """Return whether nothing that a thread in phase `phase` observes in `step` is recorded.

        In phase "train" something may be recorded if the scope has "no_grad": values that no
        gradient can reach are recorded under that phase.
        """
        if self.steps is not None and step not in self.steps:
            return True
        if self.phases is None or phase in self.phases:
            return False
        # A thread in phase TRAIN records values that no gradient can reach under phase NO_GRAD.
        return phase != TRAIN or NO_GRAD not in self.phases

    def within(self, other: Scope) -> Scope:
        """Return the scope of the phases and steps that this scope and `other` have in common."""
        return Scope(_common(self.phases, other.phases), _common_steps(self.steps, other.steps))


ANYTHING = Scope()


def _common(some: frozenset[str] | None, others: frozenset[str] | None) -> frozenset[str] | None:
    if some is None or others is None:
        return others if some is None else some
    return some & others


def _common_steps(some: Steps | None, others: Steps | None) -> Steps | None:
    if some is None or others is None:
        return others if some is None else some
    return Steps(some.groups + others.groups)


def scope(
    phases: object = None, steps: object = None, *, environ: Mapping[str, str] = _NOTHING
) -> Scope:
    """Return the scope of the given phases and steps, after a check.

    phases: a phase's name or a list of names. steps: a step, a range, or a list of steps and
        ranges. For an argument that is None, ANCHOR_PHASES or ANCHOR_STEPS of `environ` is read;
        without that variable, all phases or all steps are recorded.

    Raises OptionError if an argument or variable is malformed, or selects nothing.
    """
    if phases is None and environ.get("ANCHOR_PHASES"):
        names = [part.strip() for part in environ["ANCHOR_PHASES"].split(",") if part.strip()]
        recorded: frozenset[str] | None = _phases("ANCHOR_PHASES (--phases of anchor run)", names)
    else:
        recorded = None if phases is None else _phases("phases", phases)
    if steps is None and environ.get("ANCHOR_STEPS"):
        return Scope(recorded, _steps_of_text(environ["ANCHOR_STEPS"]))
    return Scope(recorded, None if steps is None else _steps(steps))


def _phases(where: str, phases: object) -> frozenset[str]:
    names = [phases] if isinstance(phases, str) else phases
    several = list(names) if isinstance(names, Iterable) else [None]
    if not all(isinstance(name, str) for name in several):
        raise OptionError(f"{where} is a list of phases, as ('train',), not {phases!r}")
    try:
        checked = frozenset(check_name(name) for name in several)
    except AnchorError as fault:
        raise OptionError(f"{where}: {fault}") from None
    if not checked:
        raise OptionError(f"{where} names no phase, so nothing would be recorded")
    return checked


def _steps(steps: object) -> Steps:
    several = [steps] if isinstance(steps, int | range) else steps
    if not isinstance(several, Iterable) or isinstance(several, str):
        raise _no_steps(steps)
    ranges = [_range(one, steps) for one in several]
    if not any(ranges):
        raise OptionError(f"steps={steps!r} has no step in it, so nothing would be recorded")
    return Steps((tuple(one for one in ranges if one),))


def _range(one: object, steps: object) -> range:
    if isinstance(one, int) and not isinstance(one, bool):
        one = range(one, one + 1)
    if not isinstance(one, range) or (one and min(one[0], one[-1]) < 0):
        raise _no_steps(steps)
    return one


def _no_steps(steps: object) -> OptionError:
    return OptionError(
        "steps is a whole number from 0 on, a range, as range(0, 3), or a list of them, "
        f"not {steps!r}"
    )


def _steps_of_text(text: str) -> Steps:
    ranges = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or match[4] == "0":
            raise OptionError(
                f"ANCHOR_STEPS (--steps of anchor run) is steps as '0:3,10', not {quoted(text)}"
            )
        single, first, end, stride = match.groups()
        if single:
            ranges.append(range(int(single), int(single) + 1))
        else:
            ranges.append(range(int(first or 0), int(end or sys.maxsize), int(stride or 1)))
    if not any(ranges):
        raise OptionError(f"ANCHOR_STEPS={quoted(text)} (--steps of anchor run) has no step in it")
    return Steps((tuple(one for one in ranges if one),))
