"""Private names of dynamo: marks on our functions, and facts about the code that it is tracing.

Functions that are called also in a training without torch.compile do not import dynamo: the import
takes a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from anchorlib.torch_private.door import AffectedPrograms, is_a, later, look_up, private, tell

__all__ = [
    "CAN_SKIP",
    "CompileContext",
    "enclosing_operators",
    "mark_constant",
    "mark_disabled",
    "skip_frames_of",
    "tell_marks",
    "traced_functions",
    "tracing_backend",
]

# -- how dynamo treats functions of ours

_STRATEGY: Final = "torch._C._dynamo.eval_frame.set_code_exec_strategy"


def _strategy() -> Any:
    # This module is part of torch's C library: the import does not import dynamo.
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    return eval_frame.set_code_exec_strategy, eval_frame._FrameExecStrategy(skip, skip)


_skipping: Any = private(
    _STRATEGY,
    "lets dynamo run a function and its callees as plain Python",
    "anchors outside compiled code are compiled too, each name as a small graph",
    reach=AffectedPrograms.COMPILED,
    since="2.7",
    probe=_strategy,
    kind=lambda pair: isinstance(pair, tuple) and callable(pair[0]),
)
CAN_SKIP: Final = _skipping is not None
"""Whether dynamo can be told to run a function and its callees as plain Python."""


def skip_frames_of(function: Callable[..., Any]) -> None:
    """Let dynamo run `function`, and the functions that it calls, as plain Python.

    This has no effect where dynamo inlines `function` into the graph of a caller that it traces,
    nor where this torch cannot be told so (`CAN_SKIP` is False).
    """
    if _skipping is not None:
        tell_dynamo, strategy = _skipping
        tell_dynamo(function.__code__, strategy)


_DISABLED: Final = "_torchdynamo_disable"
_CONSTANT: Final = "_dynamo_marked_constant"


def mark_disabled(function: Callable[..., Any]) -> None:
    """Make dynamo break its graph at `function`, like torch.compiler.disable, and not inline it."""
    vars(function)[_DISABLED] = True


def mark_constant(function: Callable[..., Any]) -> None:
    """Let dynamo call `function` while it traces, and use the result as a constant.

    Does what `torch.compiler.assume_constant_result` does, but without importing dynamo.
    """
    vars(function)[_CONSTANT] = True


def _marked(public: str, mark: str) -> Callable[[], object]:
    def probe() -> object:
        return getattr(look_up(public)(lambda: None), mark, None)

    return probe


_disabled = later(
    _DISABLED,
    "keeps our hooks out of compiled code",
    "our hooks are compiled into the code that they observe",
    probe=_marked("torch.compiler.disable", _DISABLED),
    kind=is_a(bool),
)
_constant = later(
    _CONSTANT,
    "puts results of functions of ours into a traced graph as constants",
    "anchors cannot be compiled: the code around them runs uncompiled",
    probe=_marked("torch.compiler.assume_constant_result", _CONSTANT),
    kind=is_a(bool),
)


def tell_marks() -> bool:
    """Warn of each mark (`mark_disabled`, `mark_constant`) that dynamo does not know any more.

    Returns whether dynamo is loaded, so that its marks could be checked.
    """
    if "torch._dynamo" not in sys.modules:
        return False
    for door in (_disabled, _constant):
        if not door.is_there:
            tell(door)
    return True


# -- the code that dynamo is tracing


class _NoContext:
    """Replaces torch's `CompileContext` where this torch lacks it: no compilation is known."""

    @staticmethod
    def try_get() -> None:
        """Return None: no compilation is known."""

    @staticmethod
    def current_compile_id() -> None:
        """Return None: no compilation is known."""


CompileContext: Any = private(
    "torch._guards.CompileContext",
    "which compilation is under way",
    "observations in compiled code are numbered in the order in which they run",
    instead=_NoContext,
    reach=AffectedPrograms.COMPILED,
    kind=is_a(type),
)

_TRACER: Final = later(
    "torch._dynamo.symbolic_convert.InstructionTranslator.current_tx",
    "the functions, operators with a body, and backend that dynamo is tracing",
    "anchors in backwards and in bodies of operators are recorded as if they were in a forward",
)


def _output() -> Any:
    """Return the graph that dynamo is tracing; None if it traces none, or torch does not tell."""
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator
    except ImportError:
        tell(_TRACER)
        return None
    try:
        return getattr(InstructionTranslator.current_tx(), "output", None)
    except AttributeError:  # `current_tx` raises it while nothing is traced
        return None
    except TypeError:
        _TRACER.fitting(InstructionTranslator.current_tx)
        tell(_TRACER)
        return None


def traced_functions() -> Iterator[str]:
    """Yield the names of the functions that dynamo is tracing, the innermost first, or nothing."""
    frame: Any = getattr(_output(), "current_tx", None)
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.parent


def enclosing_operators() -> Iterator[str]:
    """Yield the names of the operators whose bodies dynamo is tracing, the innermost first.

    The last is "None", which stands for the whole graph. Nothing is yielded where dynamo traces no
    graph.
    """
    tracer: Any = getattr(_output(), "current_tracer", None)
    while tracer is not None:
        yield str(tracer.source_target)
        tracer = tracer.parent


_ORIGINAL: Final = "_torchdynamo_orig_backend"


def tracing_backend() -> str:
    """Return the name of the backend that dynamo is tracing for; "" where it is not known."""
    wrapped = getattr(_output(), "compiler_fn", None)
    return str(getattr(getattr(wrapped, _ORIGINAL, wrapped), "compiler_name", ""))


def _unwraps() -> object:
    from torch._dynamo.repro.after_dynamo import wrap_backend_debug

    return getattr(wrap_backend_debug(lambda graph, _inputs: graph, "none"), _ORIGINAL, None)


later(
    _ORIGINAL,
    "the backend inside dynamo's wrapper of it",
    "the header does not name the backend of compiled code",
    since="2.9",
    probe=_unwraps,
)
