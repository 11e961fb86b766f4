"""Functions whose results dynamo puts into the graph as constants.

Each function here that is marked `assume_constant` runs as plain Python when dynamo traces the
call, once for each place in the code. Several of them add to the graph's program, the list of its
anchors (see `programs`).
"""

from __future__ import annotations

from typing import Any

import torch

from anchorlib import torch_private
from anchorlib.capture.compiled import anchor_operators
from anchorlib.capture.compiled.programs import (
    AnchorPlace,
    Enter,
    Leave,
    Phase,
    current_program,
    enclosing,
    traced_in_backward,
)
from anchorlib.capture.dynamo_marks import assume_constant
from anchorlib.capture.headers import autocast
from anchorlib.errors import AnchorError, NotATensorError, UnsupportedError
from anchorlib.modes import ModeSpec, parse_modes
from anchorlib.names import check_name

__all__ = [
    "AnchorFields",
    "MadeMode",
    "add_phase",
    "chosen",
    "count_skipped",
    "enter",
    "followed",
    "hide_compiled_autograd",
    "leave",
    "not_a_tensor",
    "place_anchor",
    "place_watched",
    "show_compiled_autograd",
]

_OLDEST = (2, 13)
_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])

AnchorFields = tuple[
    str, str, int, int
]  # the fields of an AnchorReference, as arguments of an operator


class MadeMode:
    """Marks a tuple, as its first item, as a mode that traced code made, such as `EveryN(10)`.

    The further items of the tuple are the class and the fields of the mode.
    """


@assume_constant
def place_anchor(
    name: Any,
    described: Any,
    other: str,
    gradients: bool,  # noqa: FBT001  # called by dynamo
) -> tuple[AnchorFields, tuple[str, str] | None]:
    """Add an anchor to the program (list of anchors) of the graph that is being traced.

    The active session also notes that the anchor was traced.

    name: as the user gave it. described: the mode as constants, classes and tuples of these, since
        dynamo passes on nothing else; None for the session's modes. other: the class of the
        anchored object if that is not a tensor, or "". gradients: whether gradients are enabled.

    Returns two items: the arguments of the operators that the anchor leaves in the graph, and None.
    Where an argument of `anchor` is wrong, or this torch is too old, nothing is added or noted; the
    second item is then the class and message of the error that an operator is to raise, and the
    first item means nothing.
    """
    try:
        if other:
            raise NotATensorError(not_a_tensor(f"anchor({name!r})", other))
        _check_version()
        name = check_name(name)
        modes = "" if described is None else ",".join(map(str, parse_modes(_restored(described))))
    except AnchorError as fault:
        return ("", "", 0, 0), (type(fault).__name__, str(fault))
    observer = anchor_operators.current()
    if observer is not None:
        observer.declare(name)
    return _placed(name, modes, gradients), None


@assume_constant
def chosen(watch: int, name: str) -> tuple[bool, bool]:
    """Return whether the value, and whether the gradient, of a watched model's tensor is recorded.

    watch: the number of the model's `ModelWatch`. name: the tensor's name. Both results are False
        where the active session has no `ModelWatch` of that number.
    """
    observer = anchor_operators.current()
    watched = None if observer is None else observer.watched.get(watch)
    return (False, False) if watched is None else watched.wants(name)


@assume_constant
def place_watched(name: str, watch: int, gradients: bool) -> AnchorFields:  # noqa: FBT001
    """Add a watched tensor to the program (list of anchors) of the graph that is being traced.

    name: the tensor's; "" where neither value nor gradient is recorded. watch: the number of the
        model's `ModelWatch`. gradients: whether gradients are enabled.

    Returns the arguments of the operators that observe the tensor.
    """
    return _placed(name, f"watch:{watch}", gradients)


@assume_constant
def followed(site: int = -1) -> bool:
    """Return whether a hook on an intermediate tensor would be traced into the backward graph here.

    It would not inside the traced body of some operators, such as loops.

    site: the index of the tensor in the graph's program. If the result is False, the program notes
        at this index that the tensor's gradient cannot be recorded. With -1, nothing is noted.
    """
    operator = enclosing()
    if operator and site >= 0:
        current_program().lost[site] = f"inside {operator}"
    return not operator


@assume_constant
def enter(watch: int, training: bool, gradients: bool) -> AnchorFields:  # noqa: FBT001
    """Add to the graph's program (list of anchors) that a watched model's forward begins.

    watch: the number of the model's `ModelWatch`. training: whether the model is in training mode.
        gradients: whether gradients are enabled.
    Returns the arguments of the operator that notes this beginning when it runs.
    """
    program = current_program()
    return "", "", program.number, program.add(Enter(watch, training, gradients))


@assume_constant
def leave(watch: int) -> AnchorFields:
    """Add to the graph's program (list of anchors) that a watched model's forward has ended.

    watch: the number of the model's `ModelWatch`.
    Returns the arguments of an operator that would note this end when it runs.
    """
    program = current_program()
    return "", "", program.number, program.add(Leave(watch))


@assume_constant
def add_phase(name: Any) -> tuple[str, str] | None:
    """Add to the graph's program (list of anchors) that the phase `name` begins.

    name: the phase; None adds that the innermost phase ends.
    Returns None, or for an invalid name, for which nothing is added, the class and the message of
    the error that an operator is to raise.
    """
    try:
        current_program().add(Phase(None if name is None else check_name(name)))
    except AnchorError as fault:
        return type(fault).__name__, str(fault)
    return None


@assume_constant
def count_skipped(name: str, reason: str) -> None:
    """Count that code being traced does not record the value of `name`; `reason` says why."""
    observer = anchor_operators.current()
    if observer is not None:
        observer.skip(name, "value", reason)


@assume_constant
def hide_compiled_autograd() -> bool:
    """Hide compiled autograd from dynamo until `show_compiled_autograd`; return whether it was on.

    It is hidden while a hook is registered. With compiled autograd on, dynamo keeps the hook for a
    compiled backward, and an eager backward fails. With compiled autograd hidden, dynamo traces the
    hook into the backward graph, where the hook runs in both.
    """
    return torch_private.hide_compiled_autograd()


@assume_constant
def show_compiled_autograd(hidden: bool) -> None:  # noqa: FBT001
    """Undo `hide_compiled_autograd`, if it hid anything.

    hidden: what `hide_compiled_autograd` returned.
    """
    if hidden:
        torch_private.show_compiled_autograd()


def not_a_tensor(call: str, other: str) -> str:
    """Return the message of the error for a call whose argument is not a tensor.

    call: the call as text, such as "print_tensor". other: the class of the argument.
    """
    return f"{call} takes a tensor, not {other}; wrap a number in torch.tensor(...)"


def _placed(name: str, modes: str, gradients: bool) -> AnchorFields:  # noqa: FBT001
    program = current_program()
    program.autocast = autocast() or program.autocast
    place = AnchorPlace(name, modes, gradients, traced_in_backward(), bool(enclosing()))
    return name, modes, program.number, program.add(place)


def _check_version() -> None:
    if _VERSION < _OLDEST:
        raise UnsupportedError(
            f"anchors inside torch.compile need torch {_OLDEST[0]}.{_OLDEST[1]}, this is "
            f"{torch.__version__}: run this model uncompiled, or anchor outside the compiled code"
        )
    torch_private.tell_moved(torch_private.AffectedPrograms.COMPILED)


def _restored(described: Any) -> ModeSpec:
    if not isinstance(described, tuple):
        return described  # type: ignore[no-any-return]
    if described and described[0] is MadeMode:
        return described[1](*described[2:])  # type: ignore[no-any-return]
    return [_restored(one) for one in described]  # type: ignore[misc]
