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
    """Where the forward of an autograd node ran: its module and its line of user code.

    number: the number of the last node that torch made for that forward operation.
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

        made: the number of the last autograd node that was made before the step.
        """
        self._now, self._before = _Step(made), self._now

    def is_new(self, number: int) -> bool:
        """Return whether autograd node `number` was made in this step and has no forward noted."""
        return number > self._now.made and number not in self._now.sites

    def note_new(self, number: int, module: str, where: str) -> bool:
        """Note an operation that is about to run as the forward of autograd node `number`.

        That happens only if the node is new, that is, made in this step and without a noted
        forward. Returns whether the node is new.
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

        number: the number of the autograd node that was made last. If the tensor is a view
        (`x[0] = y`), torch makes further nodes after the operation, which then get this module and
        line.
        """
        for late in range(number + 1, number + 1 + _LATE):
            self._now.late[late] = module, where

    def of(self, number: int, *, later: bool = False) -> ForwardSite:
        """Return where the forward of autograd node `number` ran; "" for an unknown module or line.

        later: if no forward was noted for this node, return the site of the next node that has one.
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
    """Where the forwards of one step ran. made: number of the last node made before the step.

    sites: module and line by node number. late: module and line of nodes that torch may make after
    an operation. numbers: the keys of `sites`, sorted.
    """

    def __init__(self, made: int) -> None:
        self.made = made
        self.sites: dict[int, tuple[str, str]] = {}
        self.late: dict[int, tuple[str, str]] = {}
        self.numbers: list[int] = []
