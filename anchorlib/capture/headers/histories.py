"""Values other than tensors that change during a run: hyperparameters and the random state.

    history.optimizer.lr   {"points": [[0, 0.001], [10, 0.0005]], "until": 99}
    history.random         {"points": [[0, "a3f09c…"], [1, "77b0d1…"]], "until": 1}

Histories are entries of the run's header. A hyperparameter has a point at each step that used
another value than the step before. The random state has a point at the beginning of a pass
(`random.pass1`: the second pass of a step): a digest of the state of torch's CPU generator, which
each draw on the CPU changes. The states of GPUs are not read, since that would wait for the GPU.

An entry is written whole whenever its points have grown by half, and at the end, so that all writes
together cost only a few times the last one. `until` is the last step that the history covers; a
history ends after 4,096 points.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
import xxhash

from anchorlib.capture.headers.hyperparameters import scheduled

__all__ = ["Histories"]

_MOST: Final = 4096
_PASSES: Final = 8  # passes of a step, the first ones, at which the random state is noted
_DIGITS: Final = 12  # of a digest, which need only tell apart two states at one step

Tell = Callable[[str, Any], None]


class _History:
    """The history of one value over the steps, as an entry of the run's header.

    key: the entry's key, without "history.". tell: writes an entry, given its key and value.
    """

    __slots__ = ("_due", "_key", "_points", "_tell", "_until")

    def __init__(self, key: str, tell: Tell) -> None:
        self._key, self._tell = key, tell
        self._points: list[tuple[int, Any]] = []
        self._until = 0
        self._due = 2  # a value that never changes, as most, is written only at the end

    def see(self, step: int, value: Any) -> None:
        """Note that the value was `value` in `step`, and add a point if the value has changed.

        It has changed if it differs from that of the last point, or if there is no point yet. Does
        nothing once the history has 4,096 points.
        """
        points = self._points
        if len(points) >= _MOST:
            return
        self._until = step
        if points and points[-1][1] == value:
            return
        points.append((step, value))
        if len(points) >= self._due:
            self.state()

    def state(self) -> None:
        """Write the header entry with the points so far; do nothing if there are none."""
        if self._points:
            self._due = max(len(self._points) + 1, len(self._points) * 3 // 2)
            history = {"points": [list(point) for point in self._points], "until": self._until}
            self._tell(f"history.{self._key}", history)


class Histories:
    """Notes how hyperparameters and the random state change over the steps of one session.

    Draws no random number and touches no tensor of the user's.

    tell: writes an entry of the header, given its key and value.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._all: dict[str, _History] = {}
        self._heads: WeakKeyDictionary[torch.optim.Optimizer, str] = WeakKeyDictionary()
        self._latest = (-1, -1)

    def follow(self, optimizer: torch.optim.Optimizer, head: str) -> None:
        """Have later calls of `stepped` note the hyperparameters of `optimizer`.

        head: the first word of the optimizer's header entries, such as "optimizer2".
        """
        self._heads[optimizer] = head

    def stepped(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Note the hyperparameters with which `optimizer` has just made the step `step`.

        Does nothing for an optimizer that `follow` was not given.
        """
        head = self._heads.get(optimizer)
        if head is None:
            return
        for name, value in scheduled(optimizer).items():
            self._of(f"{head}.{name}").see(step, value)

    def began(self, step: int, pass_index: int) -> None:
        """Note the random state of torch's CPU generator as a pass of a step begins.

        pass_index: the number of the pass in the step, from 0 on. Does nothing for passes after the
            eighth, and for the pass that was noted last.
        """
        if pass_index >= _PASSES or self._latest == (step, pass_index):
            return
        self._latest = (step, pass_index)
        # Reading the state draws no number, and calls no operator that a mode of the user's sees.
        state = torch.default_generator.get_state()
        if type(state) is torch.Tensor and state.device.type == "cpu" and state.data_ptr():
            raw = ctypes.string_at(state.data_ptr(), state.numel())
            key = f"random.pass{pass_index}" if pass_index else "random"
            self._of(key).see(step, xxhash.xxh3_64_hexdigest(raw)[:_DIGITS])

    def close(self) -> None:
        """Write all entries once more, complete."""
        for one in self._all.values():
            one.state()

    def _of(self, key: str) -> _History:
        history = self._all.get(key)
        if history is None:
            history = self._all[key] = _History(key, self._tell)
        return history
