"""Finds the module that an operation of compiled code belongs to, while the code runs.

A graph names a module by a variable of the function that was compiled, and a path of attributes
and items from there. When the graph's forward runs, that function's frame is among its callers and
still has the variable. When the graph's backward runs, that frame is gone: the variables are then
taken from the forward which made the backward's autograd node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import CellType, FrameType, FunctionType
from typing import Any, Final, TypeAlias

from torch import fx, nn

from anchorlib.capture.tracing.graph_nodes import CLOSURE, ModulePath
from anchorlib.torch_private import children_of

__all__ = ["CompiledModuleNames"]

_CONTAINERS: Final = (list, tuple)
_HOLDERS: Final = {(FunctionType, CLOSURE), (CellType, "cell_contents")}
_Start: TypeAlias = tuple[int, bool, str]
"""The number of an execution, and the variable that a path starts with: is it global, its name."""


class CompiledModuleNames:
    """Finds names of modules inside compiled code, for forwards of this step and the one before.

    For each execution of a graph, the objects are kept from which the paths to modules start.

    name_of: returns the name of a module; None for a module of no watched model.
    """

    def __init__(self, name_of: Callable[[object], str | None]) -> None:
        self._name_of = name_of
        self._roots: dict[_Start, object] = {}
        self._before: dict[_Start, object] = {}

    def next_step(self) -> None:
        """Begin a step: forget the objects of all steps but the last one.

        Those of the last step are kept since its backward may run in the new step.
        """
        self._roots, self._before = {}, self._roots

    def module(self, path: ModulePath, execution: int, frame: FrameType | None) -> str:
        """Return the name of the innermost module along `path` that has a name; "" where none has.

        path: how dynamo reached a module. execution: the number of the autograd node that the
            graph's forward made. frame: the frame of the graph that runs; None in backward.
        """
        key = (execution, path.of_globals, path.root)
        if frame is None:
            root = self._roots.get(key) or self._before.get(key)
        else:
            root = _variable(frame, path)
            self._roots.setdefault(key, root)  # a later run without gradients makes no node
        innermost = ""
        for value in _down(root, path.path):
            innermost = self._name_of(value) or innermost
        return innermost


def _variable(frame: FrameType | None, path: ModulePath) -> object:
    """Return the value of the variable with which `path` begins, in the function that was compiled.

    The function's frame is searched among `frame` and its callers. Return None where none of them
    has the variable.
    """
    while frame is not None:
        scope = frame.f_globals if path.of_globals else frame.f_locals
        value: object = scope.get(path.root)
        if value is not None and not _is_torchs(frame, value, path.path):
            return value
        frame = frame.f_back
    return None


def _is_torchs(frame: FrameType, value: object, links: Iterable[str]) -> bool:
    """Return whether `value`, a variable's value in `frame`, belongs to torch and not to user code.

    Frames of torch, which may have variables of the same name, lie between the graph and the user's
    function. Of modules, only a graph module belongs to torch. A function of torch's from which
    `links` lead to a module of the user's counts as the user's: dynamo compiles that function in
    place of the module that was given to `torch.compile`.

    links: the path from `value` to the module, as attributes and items.
    """
    if isinstance(value, nn.Module):
        return isinstance(value, fx.GraphModule)
    if not str(frame.f_globals.get("__name__", "")).startswith("torch."):
        return False
    inside = _down(value, links) if isinstance(value, FunctionType) else ()
    return not any(_is_users_module(one) for one in inside)


def _is_users_module(value: object) -> bool:
    return isinstance(value, nn.Module) and not isinstance(value, fx.GraphModule)


def _down(value: Any, links: Iterable[str]) -> Iterable[object]:
    """Yield `value`, then what each of `links` (an attribute, item or submodule) leads to in turn.

    No property and no `__getattr__` of the user's is run.
    """
    yield value
    for link in links:
        if isinstance(value, nn.Module) and link in children_of(value):
            value = children_of(value)[link]  # getattr may be the user's own
        elif type(value) in _CONTAINERS and link.isdecimal() and int(link) < len(value):
            value = value[int(link)]
        elif type(value) is dict:
            value = value.get(link)
        elif (type(value), link) in _HOLDERS:
            value = getattr(value, link, None)  # None for a cell that is empty
        else:
            value = getattr(value, "__dict__", {}).get(link)
        yield value
