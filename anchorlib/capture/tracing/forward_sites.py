"""Finds for each autograd node where its forward ran: the module and line, by the node's number.

torch numbers the nodes of a thread as it makes them, and makes an operation's node before it
dispatches the operation. So an operation that is dispatched is the forward of the node that was
made last, if that node is new. Where torch dispatches no operation right after it made a node, as
`torch.func` does for its own derivatives, the node belongs to the operation dispatched next.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final, NamedTuple

__all__ = ["ForwardSite", "ForwardSites"]

_LATE: Final = 2  # nodes made after an operation: for the written memory, and for its view


class ForwardSite(NamedTuple):
    """Where the forward of an autograd node ran: the module, and the line of user code.

    number: the number of the last node that torch made for that forward operation. module, where:
        the module's name and "FILE:LINE"; "" where they are not known.
    """

    number: int
    module: str = ""
    where: str = ""


class ForwardSites:
    """Where the forward operations of this step and of the step before ran.

    A backward may run a step later than its forward: where each model has an optimizer of its own,
    the first of them that steps ends the step.
    """

    def __init__(self) -> None:
        self._now, self._before = _Step(-1), _Step(-1)

    def next_step(self, made: int) -> None:
        """Begin a step.

        made: the number of the last autograd node that was made before the step; nodes with higher
            numbers belong to the step.
        """
        self._now, self._before = _Step(made), self._now

    def is_new(self, number: int) -> bool:
        """Return whether autograd node `number` was made in this step, with no forward noted."""
        return number > self._now.made and number not in self._now.sites

    def note_new(self, number: int, module: str, where: str) -> bool:
        """Note where the forward of autograd node `number` runs, if the node is new.

        A node is new if it was made in this step, and no forward of it is noted.

        number: the node that was made last, as an operation is about to run. module, where: the
            operation's module and "FILE:LINE".

        Returns whether the node is new; if not, nothing is noted.
        """
        now = self._now
        if number <= now.made or number in now.sites:
            return False
        now.sites[number] = module, where
        numbers = now.numbers
        if numbers and number < numbers[-1]:
            insort(numbers, number)
        else:
            numbers.append(number)
        return True

    def note_written(self, number: int, module: str, where: str) -> None:
        """Note where an operation runs that is about to write a tensor in place.

        If the tensor is a view (`x[0] = y`), torch makes two further nodes after the operation.
        They then get the module and line that are given here.

        number: the number of the autograd node that was made last. module, where: the operation's
            module and "FILE:LINE".
        """
        for late in range(number + 1, number + 1 + _LATE):
            self._now.late[late] = module, where

    def of(self, number: int, *, later: bool = False) -> ForwardSite:
        """Return where the forward of autograd node `number` ran.

        Module and line are "" where no forward of the node was noted.
        later: whether to return the site of the next node with a noted forward in that case.
        """
        step = self._now if number > self._now.made else self._before
        exact = step.sites.get(number) or step.late.get(number)
        if exact is None and later and number > step.made:
            at = bisect_left(step.numbers, number)
            if at < len(step.numbers):
                number = step.numbers[at]
                exact = step.sites[number]
        return ForwardSite(number, *exact) if exact else ForwardSite(number)


class _Step:
    """Where the forwards of one step ran.

    made: the number of the last autograd node made before the step. sites: module and line of each
        node's forward, by the node's number. late: module and line for nodes that torch may make
        after an operation, by their numbers. numbers: the keys of `sites`, sorted.
    """

    def __init__(self, made: int) -> None:
        self.made = made
        self.sites: dict[int, tuple[str, str]] = {}
        self.late: dict[int, tuple[str, str]] = {}
        self.numbers: list[int] = []
