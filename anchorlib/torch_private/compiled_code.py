"""Private names for what dynamo has compiled: how much there is, whether its backward runs.

Functions that are called also in a training without torch.compile do not import dynamo: the import
takes a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from anchorlib.torch_private.door import AffectedPrograms, Door, is_a, later, tell

__all__ = [
    "backward_of_compiled_autograd",
    "compile_hooks_of",
    "count_compiled",
    "emulates_precision",
    "forget_compiled",
    "hide_compiled_autograd",
    "show_compiled_autograd",
]

# -- compiled autograd

_AUTOGRAD: Final = "torch._dynamo.compiled_autograd"
_enabled = later(
    f"{_AUTOGRAD}.compiled_autograd_enabled",
    "lets hooks be traced into the graph of their tensor even while compiled autograd is on",
    "gradients of anchors in compiled code fail under compiled autograd",
    kind=is_a(bool),
)
_region = later(
    f"{_AUTOGRAD}.in_compiled_autograd_region",
    "whether a backward runs that compiled autograd has compiled",
    "tensors that such a backward recomputes are recorded again",
    kind=is_a(bool),
)


def _loaded(door: Door) -> Any:
    """Return the object behind a private name of torch; None if its module is not loaded.

    Warns, once in a process, and returns None where torch has moved the name.
    """
    module, _, name = door.name.rpartition(".")
    holder = sys.modules.get(module)
    if holder is None:
        return None
    thing = door.fitting(getattr(holder, name, None))
    if thing is None:
        tell(door)
    return thing


def hide_compiled_autograd() -> bool:
    """Let dynamo trace as if compiled autograd were off; return whether compiled autograd was on.

    If it was not, nothing is changed.
    """
    if not _loaded(_enabled):
        return False
    state: Any = sys.modules[_AUTOGRAD]
    state.compiled_autograd_enabled = False
    return True


def show_compiled_autograd() -> None:
    """Undo `hide_compiled_autograd`; to be called only after a call of it that returned True."""
    state: Any = sys.modules[_AUTOGRAD]
    state.compiled_autograd_enabled = True


def backward_of_compiled_autograd() -> bool:
    """Return whether the backward under way was compiled by compiled autograd."""
    return bool(_loaded(_region))


# -- compiled code

_seen = later(
    "torch._dynamo.convert_frame.input_codes",
    "whether anything was compiled before a model is watched",
    "watching a model makes all compiled code be compiled anew, in any case",
    kind=lambda tracker: hasattr(tracker, "seen"),
)
_counters = later(
    "torch._dynamo.utils.counters",
    "whether this process has compiled anything",
    "a trace does not state that it missed compiled code",
    kind=is_a(dict),
    reach=AffectedPrograms.TRACED,
)
_TOP_LOST: Final = "gradients of a compiled model's own outputs may be recorded in part"
_top = later(
    "torch._dynamo.OptimizedModule._initialize",
    "lets torch.compile compile the hooks of the model itself too",
    _TOP_LOST,
)
later(
    "torch._dynamo.config.wrap_top_frame",
    "the setting by which torch.compile does so",
    _TOP_LOST,
    kind=is_a(bool),
    since="2.8",
)
_precise = later(
    "torch._inductor.config.emulate_precision_casts",
    "whether compiled code rounds as eager code does",
    "the header does not tell, and anchors in low precision warn in any case",
    kind=is_a(bool),
)


def forget_compiled() -> bool:
    """Make dynamo forget what it has compiled, so that all code is compiled anew when it runs.

    Returns whether dynamo had compiled any code; also True where this torch does not tell. Where it
    had compiled none, nothing is done.
    """
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return False
    seen = getattr(_loaded(_seen), "seen", None)
    if seen is not None and not seen:
        return False
    dynamo.reset()
    return True


def compile_hooks_of(model: object) -> Callable[[], None] | None:
    """Let a model that `torch.compile` returned also compile the hooks on the model itself.

    Returns a function that undoes this. Does nothing and returns None where `model` is no such
    model, or torch has moved a name that is needed for this.
    """
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is None or type(model) is not getattr(dynamo, "OptimizedModule", None):
        return None
    compiled: Any = model
    before = compiled.forward
    try:
        with dynamo.config.patch(wrap_top_frame=True):
            compiled._initialize()  # torch reads the setting only here
    except (AttributeError, TypeError):  # `patch` raises these for an unknown setting
        tell(_top)
        return None

    def undo() -> None:
        compiled.forward = before

    return undo


def count_compiled() -> int:
    """Return how many graphs dynamo has compiled in this process; 0 if unknown."""
    counters = _loaded(_counters)
    return 0 if counters is None else int(counters["stats"]["unique_graphs"])


def emulates_precision() -> bool | None:
    """Return whether Inductor is set to round as eager code does.

    Returns None where Inductor is not loaded, or torch has moved the setting.
    """
    setting = _loaded(_precise)
    return None if setting is None else bool(setting)
