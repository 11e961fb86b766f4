"""The program's own names of its models: variables in the frames that construct an optimizer.

    optimizer = Adam(netG.parameters())                 netG
    self.opt = Adam(self.critic.parameters())           critic
    for m in models: Adam(m.parameters())               models.0, models.1

Stack frames are searched from the optimizer's constructor outwards: in each frame first its
variables, then the items of lists and dicts among the variables, then the attributes of the object
whose method runs. A name that several models have (`m` above) names none of them; a model without a
name is called by its class.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any

from torch import nn

from anchorlib.capture import unwrapped
from anchorlib.torch_private import children_of

__all__ = ["callings", "constructing", "user_frame"]

_DEEP = 64
_MANY = 64
# A function that calls one of these may hold the dict of variables that its frame gives out.
_OWN_LOCALS = {"locals", "vars", "eval", "exec"}
_REFERENCES = 3  # to an unshared dict of a frame: the frame's, our variable, getrefcount's argument


def constructing(frame: FrameType | None, kind: type) -> Iterator[object]:
    """Yield the objects of class `kind` whose methods run in `frame`, in its caller, and so on.

    Stops at the first frame that runs no method of such an object. So a wrapper optimizer is found
    while its constructor constructs the wrapped optimizer.

    kind: a class; objects of its subclasses count, too.
    """
    while frame is not None and issubclass(type(first := _first(frame)), kind):
        yield first
        frame = frame.f_back


def user_frame(frame: FrameType | None, kind: type) -> FrameType | None:
    """Return the first frame, from `frame` outwards, that runs no method of an object of `kind`.

    None where all frames run such methods, or `frame` is None.

    kind: a class; objects of its subclasses count, too.
    """
    while frame is not None and issubclass(type(_first(frame)), kind):
        frame = frame.f_back
    return frame


def callings(roots: Sequence[nn.Module], frame: FrameType | None) -> list[list[str]]:
    """Return a list for each model of `roots`: the names that the program's variables give it.

    The variables of `frame` and of its callers are searched; names of the nearest frame come first.
    A model without a name has an empty list.
    """
    names_of: list[dict[str, None]] = [{} for _ in roots]
    places = {id(unwrapped(root)): place for place, root in enumerate(roots)}
    for name, value in _named_values(frame):
        if issubclass(type(value), nn.Module):  # isinstance would load lazy objects
            place = places.get(id(unwrapped(value)))
            if place is not None:
                names_of[place][name] = None
    return [list(names) for names in names_of]


def _named_values(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    for _ in range(_DEEP):
        if frame is None:
            return
        yield from _of_frame(frame)
        frame = frame.f_back


def _of_frame(frame: FrameType) -> Iterator[tuple[str, Any]]:
    variables = _variables(frame)
    owner = variables.get(_first_name(frame))
    variables.pop("self", None)
    yield from _with_contents(variables)
    held = getattr(owner, "__dict__", None)
    if isinstance(held, dict):
        yield from _with_contents(held)
        if isinstance(owner, nn.Module):
            yield from _with_contents(children_of(owner))


def _with_contents(variables: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    named = [(name, value) for name, value in list(variables.items()) if isinstance(name, str)]
    yield from named
    for name, value in named:
        if type(value) in (list, tuple) and len(value) <= _MANY:
            yield from ((f"{name}.{place}", one) for place, one in enumerate(value))
        elif type(value) is dict and len(value) <= _MANY:
            yield from (
                (f"{name}.{key}", one)
                for key, one in list(value.items())
                if isinstance(key, str) and key.isidentifier()
            )


def _first(frame: FrameType) -> object:
    """Return the first argument of the function that `frame` runs, such as a method's `self`.

    None where the function takes no positional argument, or where its variables cannot be read.
    """
    return _variables(frame).get(_first_name(frame))


def _first_name(frame: FrameType) -> str:
    code = frame.f_code
    return code.co_varnames[0] if code.co_argcount else ""


def _variables(frame: FrameType) -> dict[str, Any]:
    """Return the variables of `frame` by name, read without a lasting change to the frame.

    Before Python 3.13 a function's frame keeps the dict that `f_locals` gives. The dict would keep
    objects alive that the function deletes later, so the dict is cleared here. `locals()` gives the
    function the same dict, which must not be cleared. So the result is empty, and the frame is not
    read, for a function that may call `locals()`.
    """
    code = frame.f_code
    if not code.co_flags & CO_OPTIMIZED or sys.version_info >= (3, 13):
        return dict(frame.f_locals)
    if not _OWN_LOCALS.isdisjoint(code.co_names):
        return {}
    kept = frame.f_locals
    variables = dict(kept)
    if sys.getrefcount(kept) <= _REFERENCES:  # not where a debugger uses the dict, too
        kept.clear()
    return variables
