"""Observations of one name put into program order, whatever order compiled code makes them in.

Modes that count or fold (EveryN, Sum, Final) need program order. A tensor that is observed too
early is copied, and the copy waits until the tensors before it in the program were recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch

from anchorlib.capture.recording import Stream
from anchorlib.capture.tensors import plain, undisturbed
from anchorlib.modes import EveryN, Final, Sum

__all__ = ["ProgramOrder", "depends_on_order"]

Record = Callable[[torch.Tensor], None]


def depends_on_order(streams: Sequence[Stream]) -> bool:
    """Return whether any of `streams` has a mode that needs observations in program order.

    Such modes are Sum, Final, and EveryN where it counts records, not steps.
    streams: the streams of one tensor and kind, one for each mode in which it is recorded.
    """
    modes = (stream.fold.mode for stream in streams)
    return any(
        isinstance(mode, Sum | Final) or (isinstance(mode, EveryN) and mode.unit == "record")
        for mode in modes
    )


class ProgramOrder:
    """Records observations in program order, with one queue for each key (name and modes)."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, _Queue] = {}

    def take(
        self, key: Hashable, sites: Sequence[int], site: int, x: torch.Tensor, record: Record
    ) -> None:
        """Call `record` with `x`, observed at `site`, once the sites before it were recorded.

        A site is the index of an anchor in the graph's program. If `x` has to wait, a copy of `x`
        is kept, and this call returns at once.

        key: the anchor's name and modes. sites: the sites of all anchors with this key, in program
            order.
        """
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(sites)
        queue.take(site, x, record)

    def settle(self) -> None:
        """Record all waiting observations now, in program order; wait for no earlier ones."""
        for queue in self._queues.values():
            queue.settle()


class _Queue:
    """The observations of one key (name and modes) that wait for earlier observations.

    sites: indices of the key's anchors in the graph's program, in program order; each execution of
        the graph visits each of them once.
    """

    __slots__ = ("_next", "_sites", "_waiting")

    def __init__(self, sites: Sequence[int]) -> None:
        self._sites = sites
        self._next = 0
        self._waiting: dict[int, tuple[torch.Tensor, Record]] = {}

    def take(self, site: int, x: torch.Tensor, record: Record) -> None:
        if site in self._waiting or site not in self._sites[self._next :]:
            self.settle()  # another execution, or another backward, has begun
        if site != self._sites[self._next]:
            with undisturbed():
                self._waiting[site] = (plain(x).clone(), record)
            return
        record(x)
        self._next += 1
        while self._next < len(self._sites) and self._sites[self._next] in self._waiting:
            kept, later = self._waiting.pop(self._sites[self._next])
            later(kept)
            self._next += 1
        if self._next == len(self._sites):
            self._next = 0

    def settle(self) -> None:
        """Record the waiting observations now: the earlier observations will not come any more."""
        for site in self._sites:
            if site in self._waiting:
                kept, record = self._waiting.pop(site)
                record(kept)
        self._next = 0
