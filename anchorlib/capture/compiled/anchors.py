"""What dynamo traces at an anchor in compiled code: calls that leave operators in the graph.

    anchor(x, name) ─▶ where = value(x, …)                       runs in forward
                       x.register_hook: gradient(g, where, …)    goes into the backward graph

What the trace cannot know (which session records, what a mode selects) is looked up by the
operators when they run, so that one graph serves every session. A guard on one global makes dynamo
compile code without any operator while no session is active.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import NoneType
from typing import Any

import torch

from anchorlib.capture.compiled import anchor_operators, traced_constants
from anchorlib.capture.compiled.input_gradients import leaf_hook, see_input
from anchorlib.capture.compiled.traced_constants import MadeMode
from anchorlib.modes import All, EveryN, Final, ModeSpec, Sum, Summary

__all__ = [
    "TracedPhase",
    "anchor_compiled",
    "enter_root",
    "follow",
    "leave_root",
    "watch_compiled",
]

Hook = Callable[[Any], torch.Tensor | None]

_CONSTANTS = (str, int, float, bytes, bool, NoneType)


def anchor_compiled(x: torch.Tensor, name: str, mode: ModeSpec | None, *, grad: bool) -> None:
    """Leave the operators of an anchor of `x` in the graph that is being traced.

    Where an argument is wrong, or this torch is too old, an operator is left instead that raises
    the error when the operator runs. Under `torch.export` no operator is left, and the anchor's
    value is counted as skipped.

    name, mode, grad: as given to `anchor`. With grad=False the anchor only notes that a gradient
        came.
    """
    if torch.compiler.is_exporting():
        traced_constants.count_skipped(name, "torch.export")
        return
    other = "" if isinstance(x, torch.Tensor) else type(x).__name__  # type: ignore[redundant-expr]
    known = name if isinstance(name, _CONSTANTS) else type(name)  # type: ignore[redundant-expr]
    gradients = torch.is_grad_enabled()
    fields, refusal = traced_constants.place_anchor(known, _described(mode), other, gradients)
    if refusal is None:
        _follow(x, anchor_operators.value(x, *fields), fields, "gradient" if grad else "notice")
    else:
        # dynamo would wrap an exception raised here; one that an operator raises arrives as it is.
        anchor_operators.refuse(*refusal)


def watch_compiled(x: torch.Tensor, name: str, watch: int, *, root: bool = False) -> None:
    """Leave operators in the traced graph which observe an input or output of a watched module.

    x: the input or output. name: the name under which `x` is recorded. watch: the number of the
        model's `ModelWatch`. root: whether `x` is an output of the whole model: then an operator
        notes the arrival of a gradient even if nothing of `x` is recorded, since a gradient ends a
        pass.

    Without `root`, no operator is left where the `ModelWatch` selected neither value nor gradient
    of `name`. Under `torch.export` no operator is left at all, and a selected tensor is counted as
    skipped.
    """
    value, grad = traced_constants.chosen(watch, name)
    if not (value or grad or root):
        return
    if torch.compiler.is_exporting():
        if value or grad:
            traced_constants.count_skipped(name, "torch.export")
        return
    counted = name if value or grad else ""
    fields = traced_constants.place_watched(counted, watch, torch.is_grad_enabled())
    where = anchor_operators.value(x, *fields) if value else anchor_operators.call(*fields)
    _follow(x, where, fields, "gradient" if grad else "notice" if root else "")


def enter_root(watch: int, *, training: bool) -> None:
    """Leave an operator in the graph which notes that the forward of a watched model begins.

    Under `torch.export` no operator is left.
    watch: the number of the model's `ModelWatch`. training: whether the model is in training mode.
    """
    if torch.compiler.is_exporting():
        return
    # The operator runs even if the forward has no anchor, so that such a forward counts as a pass.
    anchor_operators.call(*traced_constants.enter(watch, training, torch.is_grad_enabled()))


def leave_root(watch: int) -> None:
    """Note, in the graph's program, that the forward of a watched model has ended.

    The program is the list of the graph's anchors, which takes effect when an operator of the
    graph runs. If the list was empty, for instance after a graph break, an operator is left in the
    graph for this purpose, since the graph may get no other. Does nothing under `torch.export`.
    watch: the number of the model's `ModelWatch`.
    """
    if torch.compiler.is_exporting():
        return
    fields = traced_constants.leave(watch)
    if fields[-1] == 0:  # the first place of a graph that begins after a graph break
        anchor_operators.call(*fields)


class TracedPhase:
    """The context manager that `session.phase(name)` returns in compiled code."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        """Note, in the program (list of the graph's anchors), that the phase begins here.

        For an invalid name, an operator is left that raises InvalidNameError when it runs.
        """
        refusal = traced_constants.add_phase(self._name)
        if refusal is not None:
            anchor_operators.refuse(*refusal)

    def __exit__(self, *_exception: object) -> None:
        """Note, in the program (list of the graph's anchors), that the phase ends here."""
        traced_constants.add_phase(None)


def follow(x: torch.Tensor, hook: Hook) -> None:
    """Register `hook` on the gradient of `x` such that dynamo traces it into the backward graph."""
    hidden = traced_constants.hide_compiled_autograd()
    x.register_hook(hook)
    traced_constants.show_compiled_autograd(hidden)


def _follow(
    x: torch.Tensor, where: torch.Tensor, fields: traced_constants.AnchorFields, use: str
) -> None:
    """Hook the gradient of `x`, if `x` requires one.

    where: the coordinates of the value, as a small tensor. fields: the anchor's name, modes, the
        number of its graph's program (list of anchors), and its index there. use: what the hook
        does. "gradient" records the gradient; "notice" only notes that the gradient came, and puts
        no hook on a leaf; "" puts no hook on any tensor.
    """
    name, modes, program, site = fields
    if not x.requires_grad or not use:
        return
    if not x.is_leaf:
        if traced_constants.followed(site if use == "gradient" else -1):
            follow(x, _recording(where, fields) if use == "gradient" else _noticing(where))
    elif use == "gradient":
        x.register_hook(partial(leaf_hook, name=name, modes=modes, program=program, site=site))


def _recording(where: torch.Tensor, fields: traced_constants.AnchorFields) -> Hook:
    name, modes, program, site = fields

    def record(g: torch.Tensor | None) -> torch.Tensor | None:
        if not torch.compiler.is_compiling():
            see_input(g, name, modes)
        if g is not None:
            anchor_operators.gradient(g, where, name, modes, program, site)
        return g  # compiled autograd would take None to mean that there is no gradient

    return record


def _noticing(where: torch.Tensor) -> Hook:
    def notice(g: torch.Tensor | None) -> torch.Tensor | None:
        if g is not None:
            anchor_operators.notice(
                g.reshape(-1)[:1], where
            )  # one element, so that no large tensor is kept alive
        return g

    return notice


def _described(mode: Any) -> Any:
    """Return `mode` as constants, classes and tuples of these, for `place_anchor`.

    dynamo cannot pass on an object that traced code made, such as `EveryN(10)`: a tuple marked by
    `MadeMode` takes its place.
    mode: as given to `anchor`.
    """
    if isinstance(mode, list | tuple):
        return tuple([_described(one) for one in mode])
    if isinstance(mode, Sum | Final):
        return (MadeMode, type(mode), mode.window)
    if isinstance(mode, EveryN):
        return (MadeMode, EveryN, mode.n, mode.unit, mode.window)
    return type(mode) if isinstance(mode, All | Summary) else mode
