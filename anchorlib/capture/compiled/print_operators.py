"""`print_tensor` in compiled code: operators that print when they run."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import torch

from anchorlib.capture.compiled import anchor_operators, traced_constants
from anchorlib.capture.compiled.anchors import follow
from anchorlib.capture.compiled.executions import in_backward
from anchorlib.capture.compiled.input_gradients import remove_older_copies
from anchorlib.capture.compiled.kept_operators import define
from anchorlib.capture.dynamo_marks import assume_constant, skip_frames
from anchorlib.errors import AnchorError
from anchorlib.torch_private import graph_task

__all__ = ["connect_printer", "print_compiled"]

PrintFormat = tuple[Any, ...]

_sites = count()
_in_forward: set[int] = set()
_printed: set[tuple[int, int, str]] = set()  # leaves whose gradients the last backward printed

_connected: dict[str, Callable[..., object]] = {}


def connect_printer(
    check: Callable[[PrintFormat], object], write: Callable[[str, torch.Tensor, PrintFormat], None]
) -> None:
    """Set the functions that print: `check` raises for a wrong format, `write` prints a tensor."""
    _connected.update(check=check, write=write)


def print_compiled(x: torch.Tensor, title: str, print_gradient: bool, form: PrintFormat) -> None:  # noqa: FBT001
    """Leave the operators of a `print_tensor` call in the graph that is being traced.

    title: the name to print. print_gradient: whether the gradient is printed, too. form: the
        further arguments of `print_tensor`, in order.

    If an argument is wrong, an operator is left that raises the error when the operator runs. Under
    `torch.export` no operator is left.
    """
    if torch.compiler.is_exporting():
        return
    other = "" if isinstance(x, torch.Tensor) else type(x).__name__  # type: ignore[redundant-expr]
    spelled, site, refusal = _spelled(form, other)
    if refusal is not None:
        anchor_operators.refuse(*refusal)
        return
    _value(x, title, spelled, site, torch.is_grad_enabled())
    if not x.requires_grad:
        return
    if x.is_leaf:
        x.register_hook(partial(_leaf_hook, title=title, spelled=spelled, wanted=print_gradient))
    elif print_gradient and traced_constants.followed():

        def show(g: torch.Tensor | None) -> torch.Tensor | None:
            if g is not None:
                _gradient(g, title, spelled)
            return g  # compiled autograd would take None to mean that there is no gradient

        follow(x, show)


@assume_constant
def _spelled(form: PrintFormat, other: str) -> tuple[str, int, tuple[str, str] | None]:
    if other:
        return "", 0, ("NotATensorError", traced_constants.not_a_tensor("print_tensor", other))
    try:
        _connected["check"](form)
    except AnchorError as fault:
        return "", 0, (type(fault).__name__, str(fault))
    return json.dumps(form), next(_sites), None


@skip_frames
def _leaf_hook(g: torch.Tensor, title: str, spelled: str, wanted: bool) -> torch.Tensor:  # noqa: FBT001
    if torch.compiler.is_compiling():  # by compiled autograd
        if wanted:
            _gradient(g, title, spelled)
        return g
    given, leaf = remove_older_copies(_leaf_hook, keep=True, title=title)
    this = (graph_task(), leaf, title)
    if this not in _printed:
        if any(task != this[0] for task, *_ in _printed):
            _printed.clear()
        _printed.add(this)
        if given.get("wanted", wanted):
            _gradient(g, title, given.get("spelled", spelled))
    return g


def _print_value(x: torch.Tensor, title: str, spelled: str, site: int, gradients: bool) -> None:  # noqa: FBT001
    if not in_backward():
        _in_forward.add(site)
    elif gradients or site in _in_forward:
        return  # activation checkpointing repeats a print of forward
    _connected["write"](title, x, tuple(json.loads(spelled)))


def _print_gradient(g: torch.Tensor, title: str, spelled: str) -> None:
    _connected["write"](f"{title}_gradient", g, tuple(json.loads(spelled)))


_value = define(
    "print_value",
    "(Tensor x, str title, str form, int site, bool gradients) -> ()",
    _print_value,
)
_gradient = define("print_gradient", "(Tensor g, str title, str form) -> ()", _print_gradient)
