"""Finds where an operation comes from (line, module, stage) from the Python frames that called it.

The frames are read because hooks on modules would make torch.compile compile its code again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

import torch
from torch import fx

from anchorlib.torch_private import engine_code, inner_call_code, profiled_step_code

__all__ = [
    "OURS",
    "CodePlace",
    "is_called_compiled",
    "is_observing",
    "is_torchs",
    "line_above",
    "place_of",
]


class CodePlace(NamedTuple):
    """Where an operation comes from.

    where: file and line of user code, as "FILE:LINE"; for an operation of backward "", unless user
        code (a hook, a Function) ran it.
    module: name of the innermost named module that runs; None where no such module runs.
    optimizes: whether an optimizer's step runs the operation. repeats: whether the operation
        belongs to a forward that runs again inside backward (a recomputation).
    graph: the frame of a compiler's graph that runs the operation, where graphs are run operation
        by operation; None for any other operation. engine: the frame in which torch called
        autograd's engine; None where the engine does not run the operation.
    """

    where: str = ""
    module: str | None = None
    optimizes: bool = False
    repeats: bool = False
    graph: FrameType | None = None
    engine: FrameType | None = None


# A named tuple's own constructor is a function in Python, which takes several times as long.
_place: Final[Callable[[tuple[object, ...]], CodePlace]] = partial(tuple.__new__, CodePlace)

OURS: Final = CodePlace("ours")
"""The place of operations that anchorlib itself runs, which are not traced."""


class _Kind(Enum):
    USERS = auto()
    TORCHS = auto()
    OPTIMIZERS = auto()
    CHECKPOINTS = auto()
    GRAPHS = auto()
    OURS = auto()
    BESIDE = auto()  # anchorlib's other files, which may call users' code


_TORCH: Final = str(Path(torch.__file__).parent) + "/"
_DYNAMO: Final = _TORCH + "_dynamo/eval_frame.py"
_ANCHORLIB: Final = str(Path(__file__).parents[2]) + "/"
_KERNELS: Final = re.compile(r"/[a-z2-7]{2}/c[a-z2-7]{51}[.]py$")  # files that Inductor generates
_OBSERVING: Final = (f"{_ANCHORLIB}capture/", f"{_ANCHORLIB}recorder/")
_OPTIMIZING: Final = ("optim/", "nn/utils/clip_grad", "amp/grad_scaler")
_WRAPPERS: Final = {"scale", "step", "backward"}  # anchorlib's wrappers of torch's functions


_CALL: Final = inner_call_code()
_ENGINE: Final = engine_code()
_STEP: Final = profiled_step_code()

# Compared for every frame above every operation: a global is read thrice as fast as `_Kind.USERS`.
_USERS: Final = _Kind.USERS
_TORCHS: Final = _Kind.TORCHS
_OPTIMIZERS: Final = _Kind.OPTIMIZERS
_CHECKPOINTS: Final = _Kind.CHECKPOINTS
_GRAPHS: Final = _Kind.GRAPHS
_OURS: Final = _Kind.OURS

_kinds: dict[str, _Kind] = {}
_lines: dict[tuple[int, int], tuple[CodeType, str]] = {}
MOST_LINES: Final = 1 << 14
"""How many lines are cached, with their code: a program that makes code anew would fill memory."""


def is_torchs(file: str) -> bool:
    """Return whether a file, given by its path, is part of torch."""
    return file.startswith(_TORCH)


def is_called_compiled(frame: FrameType | None) -> bool:
    """Return whether `frame`, or a caller of it, is dynamo's wrapper around a compiled function."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "compile_wrapper" and code.co_filename == _DYNAMO:
            return True
        frame = frame.f_back
    return False


def is_observing(file: str) -> bool:
    """Return whether a file, given by its path, is part of anchorlib's `capture` or `recorder`.

    These observe a training; operations that they run are not traced.
    """
    return file.startswith(_OBSERVING)


def _kind_of(file: str) -> _Kind:
    kind = _kinds.get(file)
    if kind is None:
        kind = _kinds[file] = _new_kind(file)
    return kind


def _new_kind(file: str) -> _Kind:
    if file.startswith("<eval_with_key>"):
        return _Kind.GRAPHS
    if _KERNELS.search(file):
        return _Kind.TORCHS
    if file.startswith(_TORCH):
        inside = file[len(_TORCH) :]
        if inside.startswith(_OPTIMIZING):
            return _Kind.OPTIMIZERS
        return _Kind.CHECKPOINTS if inside == "utils/checkpoint.py" else _Kind.TORCHS
    if file.startswith(_OBSERVING):
        return _Kind.OURS
    return _Kind.BESIDE if file.startswith(_ANCHORLIB) else _Kind.USERS


def place_of(  # noqa: C901, PLR0912, PLR0915  # it runs at every operation: one loop, no calls
    frame: FrameType | None, names: Mapping[int, str], *, backward: bool
) -> CodePlace:
    """Return the `CodePlace` of the operation that `frame` runs; `OURS` for one of anchorlib's own.

    frame: the frame that called the operation. names: the names of modules, by `id(module)`.
        backward: whether autograd's engine runs on this thread.
    """
    where, module, graph, engine = "", None, None, None
    optimizes = repeats = called = False
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code.co_filename) or _kind_of(code.co_filename)
        if kind is _TORCHS:
            if code is _CALL:
                called = True
                if module is None or (backward and not repeats):
                    owner = frame.f_locals["self"]  # Python makes a dict of all of them
                    repeats |= backward and not isinstance(owner, fx.GraphModule)
                    if module is None:
                        module = names.get(id(owner))
            elif code is _ENGINE and backward:
                engine = frame
                break
        elif kind is _USERS:
            where = where or _line_of(frame)
        elif kind is _OPTIMIZERS:
            # AveragedModel, which averages weights, also calls the model that it holds.
            optimizes |= not (where or called) or (code is _STEP and not torch.is_grad_enabled())
        elif kind is _OURS:
            if not where and code.co_name not in _WRAPPERS:
                return OURS
        elif kind is _CHECKPOINTS:
            repeats |= backward
        elif kind is _GRAPHS:
            graph = graph or frame
        if where and (module is not None or optimizes):
            break
        frame = frame.f_back
    return _place((where, module, optimizes, repeats, graph, engine))


def line_above(frame: FrameType | None) -> str:
    """Return "FILE:LINE" of the innermost user code among `frame` and its callers.

    Return "" if none of them is user code.
    """
    while frame is not None:
        if _kind_of(frame.f_code.co_filename) is _USERS:
            return _line_of(frame)
        frame = frame.f_back
    return ""


def _line_of(frame: FrameType) -> str:
    """Return "FILE:LINE" of the line that a frame is running; FILE has no folder.

    The result is cached for each instruction. To find a line's number, Python counts from the first
    line of the function. In a function of two hundred lines this takes a microsecond, and a step
    runs the same lines again and again.
    """
    code = frame.f_code
    key = id(code), frame.f_lasti
    known = _lines.get(key)
    if known is not None and known[0] is code:
        return known[1]
    if len(_lines) >= MOST_LINES:
        _lines.clear()
    text = f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
    _lines[key] = code, text
    return text
