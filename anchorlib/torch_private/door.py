"""A door: one private name of torch, what it is for, and what is lost where torch has moved it.

    graph_task = private(
        "torch._C._current_graph_task_id",
        "tells whether a backward runs in this thread",
        "what activation checkpointing runs again is recorded again",
        instead=lambda: -1,
    )

`private` looks the name up at once, in what `import torch` has loaded anyway, and gives `instead`
where it is gone. `later` looks nothing up: its name belongs to a compiler, which is loaded where a
training compiles, and never for our sake; whoever comes to it asks `there`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any, Final

import torch

from anchorlib.errors import AnchorError

__all__ = [
    "DOORS",
    "Door",
    "MovedError",
    "Reach",
    "later",
    "look_up",
    "private",
    "tell",
    "tell_moved",
]

_log = logging.getLogger("anchorlib")


OLDEST: Final = "2.6"
"""The oldest torch that this project runs with."""


class Reach(Enum):
    """Whose recording suffers where a door is gone."""

    EAGER = "any training"
    COMPILED = "anchors in compiled code"
    TRACED = "traces of operations"
    POPTORCH = "programs written for PopTorch"


class MovedError(AnchorError, RuntimeError):
    """A private name of torch is gone, and what was asked for cannot be done without it.

    No UnsupportedError, which an anchor raises: this is counted as not recorded, and training goes
    on.
    """


@dataclass(frozen=True, slots=True)
class Door:
    """A private name of torch.

    purpose: what it is for. loss: what is lost without it. since: the oldest version of torch,
    from 2.6 on, that has it. probe: finds what stands behind the name; raises what it likes, or
    gives None, where nothing does. at_once: whether it is looked for when this is imported.
    """

    name: str
    purpose: str
    loss: str
    since: str
    reach: Reach
    at_once: bool
    probe: Callable[[], object]

    @property
    def is_there(self) -> bool:
        """Whether this torch has it; modules of compilers are imported to find out."""
        try:
            return self.probe() is not None
        except Exception:  # noqa: BLE001  # whatever torch raises, the door is not there
            return False

    @property
    def said(self) -> str:
        """What is said where it is gone."""
        return f"torch {torch.__version__} has no {self.name}: {self.loss}"


DOORS: dict[str, Door] = {}
"""Every private name of torch that this project uses."""

_moved: dict[Reach, list[Door]] = {}
_told: set[str] = set()


def private(  # noqa: PLR0913  # all that is to be known of a door
    name: str,
    purpose: str,
    loss: str,
    *,
    instead: Any = None,
    reach: Reach = Reach.EAGER,
    since: str = OLDEST,
    probe: Callable[[], object] | None = None,
) -> Any:
    """What this torch has under a private name; `instead` where it is gone, which is told.

    since: the oldest torch that has it; of an older one nothing is told, for nothing has moved.
    probe: finds it where it is no attribute of a module or class.
    """
    find = probe or (lambda: look_up(name))
    door = DOORS[name] = Door(name, purpose, loss, since, reach, at_once=True, probe=find)
    try:
        found = find()
    except Exception:  # noqa: BLE001  # whatever torch raises, the door is not there
        found = None
    if found is None:
        if _version(torch.__version__) >= _version(since):
            _moved.setdefault(reach, []).append(door)
        return instead
    return found


def later(  # the same
    name: str,
    purpose: str,
    loss: str,
    *,
    reach: Reach = Reach.COMPILED,
    since: str = OLDEST,
    probe: Callable[[], object] | None = None,
) -> Door:
    """A name in what a compiler loads: known, and not looked up."""
    find = probe or (lambda: look_up(name))
    door = DOORS[name] = Door(name, purpose, loss, since, reach, at_once=False, probe=find)
    return door


def look_up(name: str, *, loaded: bool = False) -> Any:
    """What stands under a dotted name.

    loaded: only in modules that are loaded; else they are imported. Raises AttributeError or
    ImportError where there is nothing.
    """
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        module = sys.modules.get(".".join(parts[:end]))
        if module is not None:
            break
    found: Any = module
    for place, part in enumerate(parts[end:], end):
        if not hasattr(found, part) and not loaded:
            import_module(".".join(parts[: place + 1]))
        found = getattr(found, part)
    return found


def tell_moved(reach: Reach) -> list[str]:
    """Warn, once a process and in a line each, of what recording of this reach has lost.

    Gives the names that are gone, which a run's header keeps.
    """
    moved = _moved.get(reach, [])
    for door in moved:
        tell(door)
    return [door.name for door in moved]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def tell(door: Door) -> None:
    """Warn that a door is gone, once a process."""
    if door.name not in _told:
        _told.add(door.name)
        _log.warning("anchorlib: %s", door.said)
