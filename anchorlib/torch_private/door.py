"""A door: one private name of torch, its purpose, and what is lost where torch has moved it.

    graph_task = private(
        "torch._C._current_graph_task_id",
        "tells whether a backward runs in this thread",
        "tensors that activation checkpointing recomputes are recorded again",
        instead=lambda: -1,
    )

`private` looks the name up at once, in modules that `import torch` has loaded anyway. `private`
returns `instead` where the name is gone, or now names an object of another kind (a number where a
function was): the argument `kind` tells whether an object is of the kind that our code uses.
`later` looks nothing up: its name belongs to a compiler, which only a training that compiles
imports. The code that uses such a name has to check itself whether torch has an object of that
name, and of the right kind (`Door.fitting`).
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
    "AffectedPrograms",
    "Door",
    "MovedError",
    "is_a",
    "is_attribute",
    "later",
    "look_up",
    "private",
    "tell",
    "tell_moved",
]

_log = logging.getLogger("anchorlib")


OLDEST: Final = "2.6"
"""The oldest torch that this project runs with."""


class AffectedPrograms(Enum):
    """The programs that lose something where torch has moved a name; only they are warned."""

    EAGER = "any training"
    COMPILED = "anchors in compiled code"
    TRACED = "traces of operations"
    POPTORCH = "programs written for PopTorch"


class MovedError(AnchorError, RuntimeError):
    """Raised where a tensor cannot be observed because torch has moved a private name.

    `anchor` counts a MovedError as a skipped observation, and training goes on. It is therefore no
    UnsupportedError, which `anchor` raises into the program.
    """


def is_a(*types: type) -> Callable[[Any], bool]:
    """Return a function that tells whether an object is an instance of one of these types."""
    return lambda thing: isinstance(thing, types)


def is_attribute(thing: object) -> bool:
    """Return whether `thing`, found in a class, is an attribute or method of the class's instances.

    That is, whether it is a descriptor.
    """
    return hasattr(type(thing), "__get__")


_others: dict[str, str] = {}
"""For a name under which this torch has another kind of object, the type of that object."""


@dataclass(frozen=True, slots=True)
class Door:
    """A private name of torch.

    purpose: what the name is used for. loss: what is lost where torch has moved the name. since:
    the oldest version of torch, from 2.6 on, that has the name. reach: the programs that lose it.
    at_once: whether the name is looked up when this package is imported. probe: a function that
    returns the object of this name; where there is none, it raises anything or returns None. kind:
    a function that tells whether an object is of the kind that our code uses.
    """

    name: str
    purpose: str
    loss: str
    since: str
    reach: AffectedPrograms
    at_once: bool
    probe: Callable[[], object]
    kind: Callable[[Any], bool] = callable

    @property
    def is_there(self) -> bool:
        """Whether this torch has the name; imports modules of compilers to find out."""
        return self.look() is not None

    def look(self) -> Any:
        """Return the object that torch has under the name.

        Returns None if torch has no such name, or if the object is not of the right kind.
        """
        try:
            return self.fitting(self.probe())
        except Exception:  # noqa: BLE001  # whatever torch raises, the door is not there
            return None

    def fitting(self, thing: Any) -> Any:
        """Return `thing`, found in torch under this name, if it is of the right kind, else None.

        If `thing` is of another kind, its type is kept, so that the warning `said` can name it.
        """
        if thing is None or self.kind(thing):
            return thing
        _others[self.name] = type(thing).__name__
        return None

    @property
    def said(self) -> str:
        """The warning that torch has moved the name, or has another kind of object under it."""
        other = _others.get(self.name)
        there = (
            f"has no {self.name}" if other is None else f"has another {self.name}, of type {other}"
        )
        return f"torch {torch.__version__} {there}: {self.loss}"


DOORS: dict[str, Door] = {}
"""Every private name of torch that this project uses."""

_moved: dict[AffectedPrograms, list[Door]] = {}
_logged: set[str] = set()


def private(  # noqa: PLR0913  # the fields of a door
    name: str,
    purpose: str,
    loss: str,
    *,
    instead: Any = None,
    reach: AffectedPrograms = AffectedPrograms.EAGER,
    since: str = OLDEST,
    probe: Callable[[], object] | None = None,
    kind: Callable[[Any], bool] = callable,
) -> Any:
    """Look up a private name of torch now; return its object, or `instead` where it is gone.

    A name that is gone is warned of later, by `tell_moved`. The arguments except `instead` become
    the fields of the name's `Door`, which is added to `DOORS`. An older torch than `since` causes
    no warning, as nothing moved.
    probe: a function that returns the object, where it is not found by its dotted name alone.
    kind: a function that tells whether an object is of the kind that our code uses; an object of
    another kind counts as gone.
    """
    find = probe or (lambda: look_up(name))
    door = DOORS[name] = Door(name, purpose, loss, since, reach, True, find, kind)
    there = door.look()
    if there is None:
        if _version(torch.__version__) >= _version(since):
            _moved.setdefault(reach, []).append(door)
        return instead
    return there


def later(  # noqa: PLR0913  # the fields of a door
    name: str,
    purpose: str,
    loss: str,
    *,
    reach: AffectedPrograms = AffectedPrograms.COMPILED,
    since: str = OLDEST,
    probe: Callable[[], object] | None = None,
    kind: Callable[[Any], bool] = callable,
) -> Door:
    """Add a private name of a compiler to `DOORS` without looking it up; return its `Door`.

    The arguments become the fields of this `Door`.
    """
    find = probe or (lambda: look_up(name))
    door = DOORS[name] = Door(name, purpose, loss, since, reach, False, find, kind)
    return door


def look_up(name: str) -> Any:
    """Return the object with a dotted name, such as "torch.Tensor._version".

    Modules on the way are imported where they are not loaded. Raises AttributeError or ImportError
    where there is no such object.
    """
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        module = sys.modules.get(".".join(parts[:end]))
        if module is not None:
            break
    holder: Any = module
    for place, part in enumerate(parts[end:], end):
        if not hasattr(holder, part):
            import_module(".".join(parts[: place + 1]))
        holder = getattr(holder, part)
    return holder


def tell_moved(reach: AffectedPrograms) -> list[str]:
    """Warn, once in a process, of each name that torch has moved and that affects these programs.

    Only names that `private` looked up count. Returns the names that are gone, for the run's
    header, also when they were warned of before. reach: the programs.
    """
    moved = _moved.get(reach, [])
    for door in moved:
        tell(door)
    return [door.name for door in moved]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def tell(door: Door) -> None:
    """Warn, once in a process, that torch has moved this name."""
    if door.name not in _logged:
        _logged.add(door.name)
        _log.warning("anchorlib: %s", door.said)
