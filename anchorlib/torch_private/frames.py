"""Code objects of some of torch's functions: a frame with such a code runs that function."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from torch.optim import Optimizer

from anchorlib.torch_private.door import AffectedPrograms, is_a, look_up, private

__all__ = ["call_code", "frame_code", "inner_call_code", "profiled_step_code"]


def _never() -> None:
    """Do nothing; the code of this function stands in for that of a function that torch lacks.

    It is never called.
    """


def _code(name: str, *given: Any) -> Callable[[], object]:
    """Return a function that returns the code object of torch's function `name`.

    given: arguments, or none. With arguments, the function `name` is called with them, and the code
        object is that of the function that it returns.
    """

    def probe() -> object:
        function = look_up(name)
        return (function(*given) if given else function).__code__

    return probe


def frame_code(
    name: str, purpose: str, loss: str, reach: AffectedPrograms, *given: Any
) -> CodeType:
    """Return the code object of torch's function `name`, by which its frames are recognized.

    purpose, loss, reach: see `private`. given: arguments, or none. With arguments, the function
        `name` is called with them, and the code object is that of the function that it returns.
        Where this torch has no such function, the code of a function that is never called is
        returned, so that no frame matches.
    """
    code: CodeType = private(
        name,
        purpose,
        loss,
        instead=_never.__code__,
        reach=reach,
        probe=_code(name, *given),
        kind=is_a(CodeType),
    )
    return code


_wrapped_call = frame_code(
    "torch.nn.Module._wrapped_call_impl",
    "the frame of a module that is called",
    "forwards of unwatched models without gradients are counted as training",
    AffectedPrograms.EAGER,
)
_inner_call = frame_code(
    "torch.nn.Module._call_impl",
    "the frame of a module that runs",
    "traced operations have no module",
    AffectedPrograms.TRACED,
)
_profiled = frame_code(
    "torch.optim.Optimizer.profile_hook_step",
    "the frame of an optimizer's step",
    "a step that calls the step of its base class counts as two, and operations of optimizers that "
    "are not torch's are traced as user code",
    AffectedPrograms.EAGER,
    Optimizer.step,
)


def call_code() -> CodeType:
    """Return the code object of torch's function that calls a module."""
    return _wrapped_call


def inner_call_code() -> CodeType:
    """Return the code object of torch's function that calls a module's forward and its hooks."""
    return _inner_call


def profiled_step_code() -> CodeType:
    """Return the code object of torch's wrapper around `Optimizer.step`.

    A frame that runs it shows that an optimizer's step is under way.
    """
    return _profiled
