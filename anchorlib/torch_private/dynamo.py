"""What dynamo is told of our functions, and asked about the code that it compiles.

Nothing here imports it: it takes a second, and a training that does not compile has no use for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from anchorlib.torch_private.door import Door, Reach, later, look_up, private, tell

__all__ = [
    "CAN_SKIP",
    "CompileContext",
    "backward_of_compiled_autograd",
    "compile_hooks_of",
    "count_compiled",
    "emulates_precision",
    "enclosing_operators",
    "forget_compiled",
    "hide_compiled_autograd",
    "mark_constant",
    "mark_disabled",
    "show_compiled_autograd",
    "skip_frames_of",
    "tell_marks",
    "traced_functions",
    "tracing_backend",
]

# -- functions of ours that dynamo meets

_STRATEGY: Final = "torch._C._dynamo.eval_frame.set_code_exec_strategy"


def _strategy() -> Any:
    # The module is part of torch's library: nothing of dynamo is imported for it.
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    return eval_frame.set_code_exec_strategy, eval_frame._FrameExecStrategy(skip, skip)


_skipping: Any = private(
    _STRATEGY,
    "lets dynamo run a function, and what it calls, as plain Python",
    "anchors that run outside compiled code are compiled as small graphs of their own",
    reach=Reach.COMPILED,
    since="2.7",
    probe=_strategy,
)
CAN_SKIP: Final = _skipping is not None
"""Whether dynamo can be told to leave a function and what it calls alone."""


def skip_frames_of(function: Callable[..., Any]) -> None:
    """Let dynamo run `function`, and what it calls, as plain Python where it is a frame's own."""
    if _skipping is not None:
        tell_dynamo, strategy = _skipping
        tell_dynamo(function.__code__, strategy)


_DISABLED: Final = "_torchdynamo_disable"
_CONSTANT: Final = "_dynamo_marked_constant"


def mark_disabled(function: Callable[..., Any]) -> None:
    """Let code that would inline `function` break its graph there, as torch.compiler.disable."""
    vars(function)[_DISABLED] = True


def mark_constant(function: Callable[..., Any]) -> None:
    """Let what `function` returns while code is traced stand in that code as a constant.

    As `torch.compiler.assume_constant_result`, which imports dynamo for a second.
    """
    vars(function)[_CONSTANT] = True


def _marked(public: str, mark: str) -> Callable[[], object]:
    def probe() -> object:
        return getattr(look_up(public)(lambda: None), mark, None)

    return probe


_disabled = later(
    _DISABLED,
    "keeps hooks out of what is compiled",
    "hooks of ours are compiled into the code that they watch",
    probe=_marked("torch.compiler.disable", _DISABLED),
)
_constant = later(
    _CONSTANT,
    "what is looked up while an anchor is traced stands in the graph as a constant",
    "anchors cannot be compiled: the code around them runs uncompiled",
    probe=_marked("torch.compiler.assume_constant_result", _CONSTANT),
)


def tell_marks() -> bool:
    """Say which marks dynamo has moved; whether it could be asked: it is loaded by now."""
    if "torch._dynamo" not in sys.modules:
        return False
    for door in (_disabled, _constant):
        if not door.is_there:
            tell(door)
    return True


# -- what is being traced


class _NoContext:
    """Stands for the compilation of a torch that tells of none."""

    @staticmethod
    def try_get() -> None:
        """There is none."""

    @staticmethod
    def current_compile_id() -> None:
        """There is none."""


CompileContext: Any = private(
    "torch._guards.CompileContext",
    "which compilation is under way",
    "observations in compiled code are numbered in the order in which they run",
    instead=_NoContext,
    reach=Reach.COMPILED,
)

_TRACER: Final = later(
    "torch._dynamo.symbolic_convert.InstructionTranslator.current_tx",
    "what dynamo is tracing: functions, operators with a body, the backend",
    "anchors in backwards and in bodies of operators are recorded as if they stood in a forward",
)


def _output() -> Any:
    """What dynamo is tracing; None where nothing is, or torch does not tell."""
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator
    except ImportError:
        tell(_TRACER)
        return None
    try:
        return getattr(InstructionTranslator.current_tx(), "output", None)
    except AttributeError:  # where nothing is traced, it has no current one
        return None


def traced_functions() -> Iterator[str]:
    """The names of the functions that dynamo is tracing, the innermost first."""
    frame: Any = getattr(_output(), "current_tx", None)
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.parent


def enclosing_operators() -> Iterator[str]:
    """The operators whose bodies dynamo is tracing, the innermost first; "None" is no operator."""
    tracer: Any = getattr(_output(), "current_tracer", None)
    while tracer is not None:
        yield str(tracer.source_target)
        tracer = tracer.parent


_ORIGINAL: Final = "_torchdynamo_orig_backend"


def tracing_backend() -> str:
    """The name of the backend that dynamo is tracing for, "" where that cannot be told."""
    wrapped = getattr(_output(), "compiler_fn", None)
    return str(getattr(getattr(wrapped, _ORIGINAL, wrapped), "compiler_name", ""))


def _unwraps() -> object:
    from torch._dynamo.repro.after_dynamo import wrap_backend_debug

    return getattr(wrap_backend_debug(lambda graph, _inputs: graph, "none"), _ORIGINAL, None)


later(
    _ORIGINAL,
    "the backend inside the one that dynamo has wrapped",
    "the header does not say what compiled the code that ran",
    since="2.9",
    probe=_unwraps,
)

# -- compiled autograd

_AUTOGRAD: Final = "torch._dynamo.compiled_autograd"
_enabled = later(
    f"{_AUTOGRAD}.compiled_autograd_enabled",
    "lets hooks be traced into the graph of their own tensor where compiled autograd is on",
    "gradients of anchors in compiled code fail under compiled autograd",
)
_region = later(
    f"{_AUTOGRAD}.in_compiled_autograd_region",
    "whether a backward runs that compiled autograd has compiled",
    "what such a backward runs again is recorded again",
)


def _loaded(door: Door) -> Any:
    """What stands behind a door whose module is loaded; else None, and said if it has moved."""
    module, _, name = door.name.rpartition(".")
    holder = sys.modules.get(module)
    if holder is None:
        return None
    if not hasattr(holder, name):
        tell(door)
    return getattr(holder, name, None)


def hide_compiled_autograd() -> bool:
    """Let dynamo trace as if compiled autograd were off; whether it was on."""
    if not _loaded(_enabled):
        return False
    state: Any = sys.modules[_AUTOGRAD]
    state.compiled_autograd_enabled = False
    return True


def show_compiled_autograd() -> None:
    """Undo `hide_compiled_autograd`, where it said that compiled autograd was on."""
    state: Any = sys.modules[_AUTOGRAD]
    state.compiled_autograd_enabled = True


def backward_of_compiled_autograd() -> bool:
    """Whether a backward runs that compiled autograd has compiled."""
    return bool(_loaded(_region))


# -- code that was compiled

_seen = later(
    "torch._dynamo.convert_frame.input_codes",
    "whether anything was compiled before a model is watched",
    "watching a model always has what was compiled before compiled anew",
)
_counters = later(
    "torch._dynamo.utils.counters",
    "whether this process has compiled anything",
    "a trace does not say that it missed compiled code",
    reach=Reach.TRACED,
)
_TOP_LOST: Final = "gradients of a compiled model's own outputs may be recorded in part"
_top = later(
    "torch._dynamo.OptimizedModule._initialize",
    "lets torch.compile compile the hooks of the model itself too",
    _TOP_LOST,
)
later(
    "torch._dynamo.config.wrap_top_frame",
    "the setting by which it does",
    _TOP_LOST,
    since="2.8",
)
_precise = later(
    "torch._inductor.config.emulate_precision_casts",
    "whether compiled code rounds as eager code does",
    "the header does not say so, and anchors in low precision warn in any case",
)


def forget_compiled() -> bool:
    """If anything was compiled in this process, let it be compiled anew; whether anything was."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return False
    seen = getattr(_loaded(_seen), "seen", None)
    if seen is not None and not seen:
        return False
    dynamo.reset()
    return True


def compile_hooks_of(model: object) -> Callable[[], None] | None:
    """If `torch.compile` has made `model`, let it compile the hooks too; what undoes that."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is None or type(model) is not getattr(dynamo, "OptimizedModule", None):
        return None
    compiled: Any = model
    before = compiled.forward
    try:
        with dynamo.config.patch(wrap_top_frame=True):
            compiled._initialize()  # torch reads the setting here alone
    except (AttributeError, TypeError):  # what `patch` raises of a setting that there is not
        tell(_top)
        return None

    def undo() -> None:
        compiled.forward = before

    return undo


def count_compiled() -> int:
    """How many graphs dynamo has made in this process; 0 where torch does not tell."""
    counters = _loaded(_counters)
    return 0 if counters is None else int(counters["stats"]["unique_graphs"])


def emulates_precision() -> bool | None:
    """Whether inductor rounds as eager code does; None where nobody has loaded it."""
    setting = _loaded(_precise)
    return None if setting is None else bool(setting)
