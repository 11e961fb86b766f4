"""Whether an observation inside backward is a recomputation, and which call it repeats.

Activation checkpointing runs a part of forward again, inside backward. There are two kinds:

    by hooks     forward recorded the value and made a graph, whose hooks record the gradient:
                 nothing of a recomputed tensor is to be recorded again
    reentrant    forward ran without gradients inside an autograd Function, whose backward runs
                 the forward again: only this recomputation makes a graph to hook

Other code inside backward (a custom Function's backward, a hook) repeats nothing. The Python stack
tells these cases apart; it is read only inside backward.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_left, insort
from collections.abc import Hashable
from enum import Enum
from types import FrameType

import torch
from torch.utils import checkpoint

from anchorlib.capture.counting.clock import CallCoordinates
from anchorlib.torch_private import (
    CHECKPOINT_RECOMPUTES,
    ENGINE_CALL,
    current_node,
    graph_task,
    next_sequence,
    sequence_number,
)

__all__ = ["Repetition", "UnfollowedCalls", "recomputing", "repetition"]

_CHECKPOINT = checkpoint.__file__
_TELLING = frozenset({ENGINE_CALL, CHECKPOINT_RECOMPUTES, "backward"})
_LIMIT = 65536  # most calls to remember in a step: endless inference must not fill the memory


class Repetition(Enum):
    """What an observation inside backward repeats: nothing, or a call made in forward."""

    NONE = "nothing: it is seen for the first time"
    FOLLOWED = "a call whose gradient is hooked already"
    UNFOLLOWED = "a call that was made without gradients"


def recomputing() -> bool:
    """Return whether activation checkpointing is running a forward again inside backward."""
    return graph_task() != -1 and repetition() is not Repetition.NONE


def repetition() -> Repetition:
    """Return what an observation made by this thread now, inside backward, repeats.

    Outside backward the result means nothing: use `recomputing` there.
    """
    create_graph: bool | None = None
    callee: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # no public way to the caller's frame
    while frame is not None:
        code = frame.f_code
        if code.co_name in _TELLING:
            if code.co_filename == _CHECKPOINT:
                if code.co_name == CHECKPOINT_RECOMPUTES:
                    return Repetition.FOLLOWED
                if not _is_call_of_backward(callee):
                    return Repetition.UNFOLLOWED
            elif code.co_name == ENGINE_CALL and create_graph is None:
                create_graph = _creates_graph(frame)
        callee, frame = frame, frame.f_back
    # Another library's checkpointing enables gradients in its backward. Under `create_graph` they
    # are enabled anyway, which tells nothing.
    again = torch.is_grad_enabled() and not create_graph
    return Repetition.UNFOLLOWED if again else Repetition.NONE


def _is_call_of_backward(callee: FrameType | None) -> bool:
    """Return whether reentrant checkpointing has repeated its forward and now calls backward.

    callee: the frame that checkpointing called.
    """
    return callee is not None and callee.f_code is torch.autograd.backward.__code__


def _creates_graph(engine: FrameType) -> bool:
    """Return the `create_graph` argument of a run of autograd's engine, read off its frame."""
    given = engine.f_locals.get("args", ())
    return len(given) > 2 and bool(given[2])


class UnfollowedCalls:
    """The coordinates of the calls of a step that were made without gradients, by key.

    A call is one observation of a tensor name. A key is the name, or its plan (what is recorded of
    the name). When reentrant checkpointing repeats such a call in backward, the repetition gets the
    coordinates that are remembered here. Autograd's sequence numbers tell which calls a checkpoint
    repeats: those between the number of the checkpoint's node and that of the next repeated node.
    Each backward repeats these calls in the order in which they were made.
    """

    def __init__(self) -> None:
        # By key and thread, since each thread has sequence numbers of its own.
        self._calls: dict[Hashable, dict[int, list[tuple[int, CallCoordinates]]]] = {}
        self._count = 0
        self._nodes: dict[int, list[int]] = {}  # by thread: the nodes that ran again, sorted
        self._taken: dict[tuple[Hashable, int, int], int] = {}

    def remember(self, key: Hashable, at: CallCoordinates) -> None:
        """Remember a call of `key` made now at `at`, which reentrant checkpointing may repeat.

        If 65,536 calls are remembered already, all of them are forgotten before this one is
        remembered.
        """
        if self._count >= _LIMIT:
            self.clear()
        self._count += 1
        threads = self._calls.get(key)
        if threads is None:
            threads = self._calls[key] = {}
        threads.setdefault(threading.get_ident(), []).append((next_sequence(), at))

    def take(self, key: Hashable) -> CallCoordinates | None:
        """Return the coordinates of the next call of `key` that the running autograd node repeats.

        Each call counts as repeated then: in this backward, the next `take` returns the next call.
        Return None where no such call is remembered, or no node runs.
        """
        threads, node = self._calls.get(key), current_node()
        if threads is None or node is None:
            return None
        first = sequence_number(node) + 1
        end = self._end(first)
        turn = (key, first, graph_task())
        done = self._taken.get(turn, 0)
        own = threads.get(threading.get_ident())
        for calls in [own] if own is not None else threads.values():
            place = bisect_left(calls, first, key=lambda call: call[0]) + done
            if place < len(calls) and calls[place][0] < end:
                self._taken[turn] = done + 1
                return calls[place][1]
        return None

    def _end(self, first: int) -> float:
        """Return the sequence number at which the calls of the next repeated node begin.

        Infinity is returned where no node with a higher number has been repeated so far.

        first: the number at which the calls of the running node begin. The number is remembered,
            since the running node is a repeated node too.
        """
        nodes = self._nodes.setdefault(threading.get_ident(), [])
        place = bisect_left(nodes, first)
        if place == len(nodes) or nodes[place] != first:
            insort(nodes, first)
        return nodes[place + 1] if place + 1 < len(nodes) else float("inf")

    def clear(self) -> None:
        """Forget all remembered calls."""
        self._calls.clear()
        self._nodes.clear()
        self._taken.clear()
        self._count = 0
