"""Which optimizer's step ends a step of the session, and a summary of steps and passes.

"The clock" here is the optimizer whose steps end the session's steps. It is the first optimizer
that completes a step, or the one that `watch` was given. Other optimizers step inside the clock's
steps (as in a GAN, where two optimizers step once each). Another optimizer becomes the clock if

    the clock has stepped alone so far (at least twice in a row), and then the other one steps
    the other one steps twice or more in a step of the clock, and more often than ever before
    the clock was freed, and then the other one steps

A step that an optimizer repeats at once, without a gradient in between, does not count for the
second case: it follows the same backward pass, and the clock's next step is still to come.

When the old clock steps again, it takes over if the new one has ended a single step, or if the old
one is the optimizer that `watch` was given.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

__all__ = ["StepEnders"]

_HISTORY = 1024
_SHOWN = 4


class _Stepper:
    """An optimizer: how many steps of the session it ended, and after which passes it stepped."""

    __slots__ = ("ended", "first", "kind", "label", "last", "optimizer")

    def __init__(self, optimizer: object) -> None:
        self.optimizer: Callable[[], Any] = ref(optimizer)
        self.kind = type(optimizer).__name__
        self.label = ""
        self.ended = 0  # steps of the session that it has ended
        self.first = self.last = -1  # the range of passes inside a step after which it stepped

    def inside(self, pass_index: int) -> None:
        self.first = pass_index if self.first < 0 else min(self.first, pass_index)
        self.last = max(self.last, pass_index)

    def what(self, *, alone: bool) -> str:
        """Return a text on what the optimizer ends: "the step", "2 steps and pass 1", "pass 0".

        Steps are those of the session. Passes are those after which the optimizer stepped inside a
        step.
        alone: whether no other optimizer ends steps; the steps are then not counted in the text.
        """
        steps = "the step" if alone else _several(self.ended, "step")
        first, last = self.first, self.last
        passes = f"pass {last}" if first == last else f"passes {first} to {last}"
        return " and ".join([steps] * (self.ended > 0) + [passes] * (last >= 0))


class _StepEnderPeriod(NamedTuple):
    """A time during which one optimizer, "the clock", ended the session's steps.

    The period is kept so that the optimizer can become the clock again.

    clock: the optimizer; None for the time before any optimizer was the clock. most: for each other
        optimizer, the most steps that it made inside one step of the clock. beside: the optimizers
        that stepped inside the clock's steps.
    """

    clock: _Stepper | None
    most: dict[_Stepper, int]
    beside: set[_Stepper]


class StepEnders:
    """Decides, for one session, which optimizer's steps end the session's steps.

    label: returns the name of an optimizer.
    """

    def __init__(self, label: Callable[[Any], str] = lambda one: type(one).__name__) -> None:
        self.steps = 0
        self.by_hand = False
        self._fewest = self._most_passes = -1
        self._label = label
        self._known: dict[int, _Stepper] = {}
        self._order: list[_Stepper] = []  # in the order of their first steps
        self._named: _Stepper | None = None
        self._clock: _Stepper | None = None
        self._history: deque[_Stepper] = deque(maxlen=_HISTORY)
        self._in_a_row = 0  # steps in a row of the optimizer that stepped last
        self._repeated = False  # whether the last step was a repetition without a gradient
        self._inside: dict[_Stepper, int] = {}  # steps of others inside the open step
        self._most: dict[_Stepper, int] = {}  # most steps of others inside a step of this clock
        self._beside: set[_Stepper] = set()  # optimizers that stepped inside its steps
        self._ended_by_clock = 0  # steps that this clock has ended
        self._before: _StepEnderPeriod | None = None  # the clock before this, if it stepped alone

    def name(self, optimizer: object) -> None:
        """Make `optimizer` the clock, whose steps end the session's steps, if there is none yet.

        Called for an optimizer that `watch` was given.
        """
        if self._clock is None:
            self._named = self._clock = self._stepper(optimizer)

    def unname(self) -> None:
        """Forget which optimizer is the clock, since `watch` will be given another optimizer.

        Does nothing once an optimizer has stepped, or a step was ended by hand.
        """
        if not self.have_begun:
            self._named = self._clock = None

    @property
    def have_begun(self) -> bool:
        """Whether an optimizer has stepped, or a step was ended by hand."""
        return bool(self._history or self.steps)

    def stepped(
        self, optimizer: object, pass_index: int, *, by_hand: bool, gradient: bool = True
    ) -> bool:
        """Note a step of `optimizer` after pass `pass_index`; return whether a session's step ends.

        by_hand: whether steps end only at `session.step()`; the result is then False. gradient:
            whether a gradient was seen since any optimizer stepped last.
        """
        one = self._stepper(optimizer)
        if not one.label:
            one.label = self._label(optimizer)
            self._order.append(one)
        self.by_hand = by_hand
        if by_hand:
            one.inside(pass_index)
            return False
        alone = bool(self._history) and self._history[-1] is one
        # Where no gradients are seen at all, only the first repetition passes for one.
        self._repeated = alone and not gradient and not self._repeated
        ends = one is self._clock or (not self._repeated and self._takes_over(one))
        self._in_a_row = self._in_a_row + 1 if alone else 1
        self._history.append(one)
        if ends:
            one.ended += 1
            self._ended_by_clock += 1
            for other, times in self._inside.items():
                self._most[other] = max(times, self._most.get(other, 0))
            self._inside = {}
        else:
            one.inside(pass_index)
        return ends

    def end(self, passes: int) -> None:
        """Count a step of the session that has ended.

        passes: how many passes the step had; 0 where no pass was seen: such a step does not count
            for the passes that the summary names.
        """
        self.steps += 1
        if not passes:
            return
        self._fewest = passes if self._fewest < 0 else min(passes, self._fewest)
        self._most_passes = max(passes, self._most_passes)

    def __str__(self) -> str:
        """Return a summary, such as "3 steps of 3 passes; D ends pass 1, G the step".

        Return "" if no step has ended.
        """
        if not self.steps:
            return ""
        said = f"{_several(self.steps, 'step')}{self._passes()}"
        if self.by_hand or len(self._order) < 2:
            said += f", ended by {self.ender}"
        return "; ".join([said, *self._who()])

    @property
    def ender(self) -> str:
        """What ends steps: "session.step()", or the names of the optimizers that ended steps.

        At most four names are listed, in the order of first steps; then comes "…".
        """
        if self.by_hand or not self._order:
            return "session.step()"
        enders = [
            label if label.startswith(one.kind) else f"{one.kind} of {label}"
            for label, one in zip(self._labels(), self._order, strict=True)
            if one.ended
        ]
        return ", ".join([*enders[:_SHOWN], *["…"] * (len(enders) > _SHOWN)]) or "session.step()"

    def _passes(self) -> str:
        fewest, most = self._fewest, self._most_passes
        if most < 1:  # -1 where nothing was recorded, and no pass seen
            return ""
        return (
            f" of {_several(most, 'pass')}" if fewest == most else f" of {fewest} to {most} passes"
        )

    def _who(self) -> list[str]:
        """Return one text, in a list, on the steps and passes that each optimizer ends.

        The first four optimizers are described, in the order of their first steps; the others are
        counted. The list is empty for fewer than two optimizers.
        """
        steppers = self._order
        if len(steppers) < 2:
            return []
        enders = sum(one.ended > 0 for one in steppers)
        parts: list[str] = []
        for label, one in zip(self._labels(), steppers[:_SHOWN], strict=False):
            verb = "" if parts else "ends "
            parts.append(f"{label} {verb}{one.what(alone=enders == 1)}")
        more = len(steppers) - len(parts)
        return [", ".join(parts) + (f", and {more} more" if more else "")]

    def _labels(self) -> list[str]:
        """Return the optimizers' names, numbered where equal, in the order of their first steps."""
        labels = [one.label for one in self._order]
        several, seen = Counter(labels), Counter[str]()
        numbered: list[str] = []
        for label in labels:
            seen[label] += 1
            numbered.append(f"{label} {seen[label]}" if several[label] > 1 else label)
        return numbered

    def _takes_over(self, one: _Stepper) -> bool:
        clock, before = self._clock, self._before
        times = self._inside[one] = self._inside.get(one, 0) + 1
        if clock and before and one is before.clock and self._ended_by_clock == 1:
            # The new clock ended a single step, so it steps inside the old clock's steps after all,
            # as a generator does between steps of its critic.
            self._begin(one, before.most, before.beside | self._beside | {clock})
            return True
        named = one is self._named
        turn = not named and one not in self._beside and self._stepping_alone()
        if (
            turn
            or named
            or clock is None
            or clock.optimizer() is None
            or times > max(1, self._most.get(one, 0))
        ):
            taken = _StepEnderPeriod(clock, self._most, self._beside) if turn else None
            self._begin(one, self._since(one), set(), taken)
            return True
        self._beside.add(one)
        return False

    def _begin(
        self,
        clock: _Stepper,
        most: dict[_Stepper, int],
        beside: set[_Stepper],
        before: _StepEnderPeriod | None = None,
    ) -> None:
        self._clock, self._most, self._beside, self._before = clock, most, beside, before
        self._inside, self._ended_by_clock = {}, 0

    def _stepping_alone(self) -> bool:
        return self._in_a_row > 1 and self._history[-1] is self._clock

    def _since(self, one: _Stepper) -> dict[_Stepper, int]:
        """Return how often each other optimizer has stepped since `one` stepped last.

        These counts begin `most` when `one` becomes the clock. `most` has, for each other
        optimizer, the most steps that it made inside one step of the clock.
        """
        times: dict[_Stepper, int] = {}
        for other in reversed(self._history):
            if other is one:
                break
            times[other] = times.get(other, 0) + 1
        return times

    def _stepper(self, optimizer: object) -> _Stepper:
        known = self._known.get(id(optimizer))
        if known is None or known.optimizer() is not optimizer:
            known = self._known[id(optimizer)] = _Stepper(optimizer)
        return known


def _several(number: int, what: str) -> str:
    plural = what + ("es" if what.endswith("s") else "s")
    return f"{number} {what if number == 1 else plural}"
