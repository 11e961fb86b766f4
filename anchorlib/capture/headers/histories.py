"""What changes while a run goes on and is no tensor: hyperparameters, the random state.

    history.optimizer.lr   {"points": [[0, 0.001], [10, 0.0005]], "until": 99}
    history.random         {"points": [[0, "a3f09c…"], [1, "77b0d1…"]], "until": 1}

They are entries of the header. A hyperparameter has a point at each step that used another value
than the one before. The random state has one where a step's pass begins (`random.pass1` is that of
the second pass): the digest of torch's generator of the CPU, of which everything that is drawn on
the CPU makes another one. States of GPUs are not asked for: that would wait for the GPU.

An entry is stated again each time that it has grown by half, and at the end, so that it costs as
much as its last statement a few times. After 4,096 points it is told no further: `until` says so.
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
_PASSES: Final = 8  # of a step, of which the random state is told
_DIGITS: Final = 12  # of a digest: two states of one step are to be told apart, not found

Tell = Callable[[str, Any], None]


class _History:
    """One value over the steps; `tell` states it."""

    __slots__ = ("_due", "_key", "_points", "_tell", "_until")

    def __init__(self, key: str, tell: Tell) -> None:
        self._key, self._tell = key, tell
        self._points: list[tuple[int, Any]] = []
        self._until = 0
        self._due = 2  # one alone, as most are, is stated at the end

    def see(self, step: int, value: Any) -> None:
        """The value at `step`; of equal ones the first is a point."""
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
        """State what is known so far."""
        if self._points:
            self._due = max(len(self._points) + 1, len(self._points) * 3 // 2)
            told = {"points": [list(point) for point in self._points], "until": self._until}
            self._tell(f"history.{self._key}", told)


class Histories:
    """The histories of one session; nothing here draws a number or touches a tensor of the user's.

    tell: states an entry of the header.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._all: dict[str, _History] = {}
        self._heads: WeakKeyDictionary[torch.optim.Optimizer, str] = WeakKeyDictionary()
        self._latest = (-1, -1)

    def follow(self, optimizer: torch.optim.Optimizer, head: str) -> None:
        """Tell what `optimizer`, which the header calls `head`, is set to at each of its steps."""
        self._heads[optimizer] = head

    def stepped(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """An optimizer has made a step with what it is set to now."""
        head = self._heads.get(optimizer)
        if head is None:
            return
        for name, value in scheduled(optimizer).items():
            self._of(f"{head}.{name}").see(step, value)

    def began(self, step: int, pass_index: int) -> None:
        """A pass of a step begins."""
        if pass_index >= _PASSES or self._latest == (step, pass_index):
            return
        self._latest = (step, pass_index)
        # Neither draws a number nor calls an operator: a dispatch mode of the user's sees nothing.
        state = torch.default_generator.get_state()
        if type(state) is torch.Tensor and state.device.type == "cpu" and state.data_ptr():
            raw = ctypes.string_at(state.data_ptr(), state.numel())
            key = f"random.pass{pass_index}" if pass_index else "random"
            self._of(key).see(step, xxhash.xxh3_64_hexdigest(raw)[:_DIGITS])

    def close(self) -> None:
        """State all that is known."""
        for one in self._all.values():
            one.state()

    def _of(self, key: str) -> _History:
        found = self._all.get(key)
        if found is None:
            found = self._all[key] = _History(key, self._tell)
        return found
