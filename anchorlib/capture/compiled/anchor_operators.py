"""The operators that anchors leave in compiled code; each calls the session's observer.

    value     observes a tensor's value, and returns `where`
    call      counts a call for which no tensor is observed, and returns `where`
    gradient  observes a gradient, in backward
    notice    notes that a gradient came, and records nothing
    leaf      observes the gradient of a leaf
    refuse    raises an error that was found while tracing

`where` is the coordinates of the observation as a small tensor (see `coordinates_tensor`). `refuse`
is an operator because dynamo wraps an exception that is raised while it traces; an exception that
an operator raises reaches the user as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from anchorlib import errors
from anchorlib.capture.compiled.coordinates_tensor import NOWHERE, WHERE
from anchorlib.capture.compiled.kept_operators import define
from anchorlib.capture.compiled.observer import CompiledObserver
from anchorlib.capture.compiled.programs import AnchorReference

__all__ = ["call", "connect", "current", "gradient", "leaf", "notice", "refuse", "value"]


def _nobody() -> CompiledObserver | None:
    return None


current: Callable[[], CompiledObserver | None] = _nobody


def connect(source: Callable[[], CompiledObserver | None]) -> None:
    """Set the function by which operators find the observer of the active session.

    source: returns that observer; None while no session is active.
    """
    global current  # noqa: PLW0603  # set once, at import
    current = source


_last: tuple[tuple[int, ...], np.ndarray[Any, Any]] = ((), np.empty(0, np.int64))
_tuple = tuple.__new__  # a NamedTuple's own constructor is a slower Python function


def _value(x: torch.Tensor | None, name: str, modes: str, program: int, site: int) -> torch.Tensor:
    observer = current()
    anchor = _tuple(AnchorReference, (name, modes, program, site))
    where = NOWHERE if observer is None else observer.value(x, anchor)
    global _last  # noqa: PLW0603  # most places of a pass have the same coordinates
    last, kept = _last
    if where != last:
        kept = np.array(where, np.int64)
        _last = where, kept
    # A new tensor each time, since compiled code may reuse the memory of the last. Copying the
    # array takes two thirds of the time of cloning a tensor.
    return torch.from_numpy(kept.copy())


def _call(name: str, modes: str, program: int, site: int) -> torch.Tensor:
    return _value(None, name, modes, program, site)


def _gradient(  # the operator's arguments
    g: torch.Tensor, where: torch.Tensor, name: str, modes: str, program: int, site: int
) -> None:
    observer = current()
    if observer is not None:
        observer.gradient(g, where, _tuple(AnchorReference, (name, modes, program, site)))


def _notice(_g: torch.Tensor, where: torch.Tensor) -> None:
    observer = current()
    if observer is not None:
        observer.notice(where)


def _leaf(g: torch.Tensor, name: str, modes: str, program: int, site: int) -> None:
    observer = current()
    if observer is not None:
        observer.leaf_gradient(g, AnchorReference(name, modes, program, site))


def _refuse(error: str, message: str) -> None:
    raise getattr(errors, error)(message)


_SPOT = "str name, str modes, int program, int site"

value = define("value", f"(Tensor x, {_SPOT}) -> Tensor", _value, WHERE)
call = define("call", f"({_SPOT}) -> Tensor", _call, WHERE)
gradient = define("gradient", f"(Tensor g, Tensor where, {_SPOT}) -> ()", _gradient)
notice = define("notice", "(Tensor g, Tensor where) -> ()", _notice)
leaf = define("leaf", f"(Tensor g, {_SPOT}) -> ()", _leaf)
refuse = define("refuse", "(str error, str message) -> ()", _refuse)
