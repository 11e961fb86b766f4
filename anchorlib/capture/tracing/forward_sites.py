"""Where the forward of each autograd node ran: its module and line, by the node's number.

torch numbers the nodes of a thread as it makes them, and makes an operation's node before it
dispatches the operation. So an operation that is dispatched is the forward of the node that was
made last, if that node is new. A node for which no operation was dispatched at once, as
`torch.func` makes them for derivatives of its own, belongs to the operation that is dispatched
next.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final, NamedTuple

__all__ = ["ForwardSite", "ForwardSites"]

_LATE: Final = 2  # one for the memory that was written, one for the view of it


class ForwardSite(NamedTuple):
    """The forward of a node. number: that of the last node which torch made for it."""

    number: int
    module: str = ""
    where: str = ""


class ForwardSites:
    """The forwards of one step and of the step before it.

    A backward may run a step later than its forward: where each model has an optimizer of its own,
    the first of them that steps ends the step.
    """

    def __init__(self) -> None:
        self._now, self._before = _Step(-1), _Step(-1)

    def next_step(self, made: int) -> None:
        """A step begins. made: the number of the last node that was made before it."""
        self._now, self._before = _Step(made), self._now

    def is_new(self, number: int) -> bool:
        """Whether node `number` was made in this step and no operation was its forward so far."""
        return number > self._now.made and number not in self._now.sites

    def note_new(self, number: int, module: str, where: str) -> bool:
        """Note the forward of node `number`, an operation that is about to run, if it is new."""
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
        """Note an operation that is about to write a tensor in place; node `number` was made last.

        torch may make further nodes after it, if the tensor is a view (`x[0] = y`).
        """
        for late in range(number + 1, number + 1 + _LATE):
            self._now.late[late] = module, where

    def of(self, number: int, *, later: bool = False) -> ForwardSite:
        """The forward of node `number`, without module and line where it is not known.

        later: whether it is the operation that was dispatched next, where none was at once.
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
    """The forwards of one step. made: the number of the last node that was made before it.

    sites: module and line by number. late: those of nodes that torch may make after an operation.
    numbers: of `sites`, in order.
    """

    def __init__(self, made: int) -> None:
        self.made = made
        self.sites: dict[int, tuple[str, str]] = {}
        self.late: dict[int, tuple[str, str]] = {}
        self.numbers: list[int] = []
