"""The operators that anchors leave in compiled code.

    value    a tensor's value; returns where it is         call      the same without the value
    gradient its gradient, in backward                     notice    a gradient came: no more
    leaf     the gradient of a leaf                        refuse    raises what tracing could not

Exceptions that tracing raises reach the user wrapped by dynamo; those of an operator arrive as
they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from anchorlib import errors
from anchorlib.capture.compiled.observing import NOWHERE, WHERE, CompiledObserver
from anchorlib.capture.compiled.operators import define
from anchorlib.capture.compiled.programs import Spot

__all__ = ["call", "connect", "current", "gradient", "leaf", "notice", "refuse", "value"]


def _nobody() -> CompiledObserver | None:
    return None


current: Callable[[], CompiledObserver | None] = _nobody


def connect(source: Callable[[], CompiledObserver | None]) -> None:
    """Let `source` say who observes, if anybody does."""
    global current  # noqa: PLW0603  # set once, at import
    current = source


_last: tuple[tuple[int, ...], np.ndarray[Any, Any]] = ((), np.empty(0, np.int64))
_tuple = tuple.__new__  # a NamedTuple's own constructor is a function of Python


def _value(x: torch.Tensor | None, name: str, modes: str, program: int, site: int) -> torch.Tensor:
    observer = current()
    spot = _tuple(Spot, (name, modes, program, site))
    where = NOWHERE if observer is None else observer.value(x, spot)
    global _last  # noqa: PLW0603  # most places of a pass have the same coordinates
    last, kept = _last
    if where != last:
        kept = np.array(where, np.int64)
        _last = where, kept
    # Always a new tensor: compiled code may write other values into its memory later. This way
    # one is made in two thirds of the time that cloning takes.
    return torch.from_numpy(kept.copy())


def _call(name: str, modes: str, program: int, site: int) -> torch.Tensor:
    return _value(None, name, modes, program, site)


def _gradient(  # the operator's arguments
    g: torch.Tensor, where: torch.Tensor, name: str, modes: str, program: int, site: int
) -> None:
    observer = current()
    if observer is not None:
        observer.gradient(g, where, _tuple(Spot, (name, modes, program, site)))


def _notice(_g: torch.Tensor, where: torch.Tensor) -> None:
    observer = current()
    if observer is not None:
        observer.notice(where)


def _leaf(g: torch.Tensor, name: str, modes: str, program: int, site: int) -> None:
    observer = current()
    if observer is not None:
        observer.leaf_gradient(g, Spot(name, modes, program, site))


def _refuse(error: str, message: str) -> None:
    raise getattr(errors, error)(message)


_SPOT = "str name, str modes, int program, int site"

value = define("value", f"(Tensor x, {_SPOT}) -> Tensor", _value, WHERE)
call = define("call", f"({_SPOT}) -> Tensor", _call, WHERE)
gradient = define("gradient", f"(Tensor g, Tensor where, {_SPOT}) -> ()", _gradient)
notice = define("notice", "(Tensor g, Tensor where) -> ()", _notice)
leaf = define("leaf", f"(Tensor g, {_SPOT}) -> ()", _leaf)
refuse = define("refuse", "(str error, str message) -> ()", _refuse)
