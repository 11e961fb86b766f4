"""Of compiled code that runs: which module each of its operations belongs to.

A graph names a module by a variable of the function that was compiled, and the way from there
down. Its forward is called below that function, whose frame still has the variable. Its backward
is not: it is known by the number of its autograd node, which its forward had made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Final

from torch import fx, nn

from anchorlib.capture.tracing.nodes import ModulePath
from anchorlib.torch_private import children_of

__all__ = ["Insides"]

_CONTAINERS: Final = (list, tuple)


class Insides:
    """What is known of a step's executions of compiled code.

    name_of: what a module is called; None where it is not known.
    """

    def __init__(self, name_of: Callable[[object], str | None]) -> None:
        self._name_of = name_of
        self._roots: dict[tuple[int, bool, str], object] = {}

    def forget(self) -> None:
        """A step has ended."""
        self._roots.clear()

    def module(self, path: ModulePath, execution: int, frame: FrameType | None) -> str:
        """The name of the innermost module on the way of `path` that has one, or nothing.

        execution: the number of its autograd node. frame: of the graph that runs; None in backward.
        """
        key = (execution, path.of_globals, path.root)
        if frame is None:
            root = self._roots.get(key)
        else:
            root = _variable(frame, path)
            self._roots.setdefault(key, root)  # what runs later without gradients makes no node
        found = ""
        for one in _down(root, path.path):
            found = self._name_of(one) or found
        return found


def _variable(frame: FrameType | None, path: ModulePath) -> object:
    """The value of the variable with which `path` begins, in the function that was compiled."""
    while frame is not None:
        scope = frame.f_globals if path.of_globals else frame.f_locals
        value: object = scope.get(path.root)
        if value is not None and not _is_torchs(frame, value):
            return value
        frame = frame.f_back
    return None


def _is_torchs(frame: FrameType, value: object) -> bool:
    """Whether torch runs compiled code with it, between that and the function of the user's."""
    if isinstance(value, nn.Module):
        return isinstance(value, fx.GraphModule)
    return str(frame.f_globals.get("__name__", "")).startswith("torch.")


def _down(value: Any, links: Iterable[str]) -> Iterable[object]:
    """`value` and all that is met on the way; no property and no hook of the user's is run."""
    yield value
    for link in links:
        if isinstance(value, nn.Module) and link in children_of(value):
            value = children_of(value)[link]  # getattr may be the user's own
        elif type(value) in _CONTAINERS and link.isdecimal() and int(link) < len(value):
            value = value[int(link)]
        elif type(value) is dict:
            value = value.get(link)
        else:
            value = getattr(value, "__dict__", {}).get(link)
        yield value
