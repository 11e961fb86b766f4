"""Private names for the layers between a call and its kernel: modes, functorch, jit, autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NoReturn

import torch

from anchorlib.torch_private.door import DOORS, AffectedPrograms, MovedError, is_a, private

__all__ = [
    "DispatchMode",
    "dispatch_mode_at",
    "dispatch_modes",
    "function_modes",
    "inside_functorch",
    "is_any_autocast",
    "is_tracing",
    "is_wrapped",
    "without_modes",
]

# Where a stack of modes cannot be read it counts as not empty, which is slower, but correct.
_SLOWER: Final = "each record costs a few microseconds more"

function_modes = private(
    "torch._C._len_torch_function_stack",
    "how many modes of the user's intercept calls of torch's functions",
    _SLOWER,
    instead=lambda: 1,
)
_dispatch_modes = private(
    "torch._C._len_torch_dispatch_stack",
    "how many modes of the user's intercept dispatched operations",
    f"{_SLOWER}, and operations are not traced",
    instead=lambda: 1,
)
dispatch_mode_at = private(
    "torch._C._get_dispatch_stack_at",
    "which mode is on top of the stack, before ours is removed",
    "operations are not traced",
    instead=None,
    reach=AffectedPrograms.TRACED,
)

_dispatch_mode: Any = private(
    "torch.utils._python_dispatch.TorchDispatchMode",
    "shows each operation that torch dispatches",
    "operations are not traced",
    reach=AffectedPrograms.TRACED,
    kind=is_a(type),
)
DispatchMode: Any = _dispatch_mode or object

# Where our mode could not be put on the stack, or not be removed, the stack counts as in use: a
# trace then states a gap and never puts the mode there.
_can_trace = _dispatch_mode is not None and dispatch_mode_at is not None
dispatch_modes: Any = _dispatch_modes if _can_trace else lambda: 1

is_tracing = private(
    "torch._C._is_tracing",
    "whether torch.jit.trace runs, which would record our copies as operations of the model",
    _SLOWER,
    instead=torch.jit.is_tracing,  # type: ignore[attr-defined]  # public, and not exported
)
is_any_autocast = private(
    "torch._C._is_any_autocast_enabled",
    "whether autocast is on for any device, before each is asked",
    "each pass costs a few microseconds more",
    instead=lambda: True,
)

is_wrapped = private(
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "whether a tensor is a wrapper made by vmap or grad",
    "tensors inside torch.func are not recorded",
    instead=lambda _x: False,
)


def _wrapped_for_good(_x: object) -> NoReturn:
    raise MovedError(DOORS["torch._C._functorch.get_unwrapped"].said)


_unwrapped: Any = private(
    "torch._C._functorch.get_unwrapped",
    "the tensor that vmap or grad has wrapped",
    "tensors inside torch.func are not recorded",
    instead=_wrapped_for_good,
)


def inside_functorch(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside all wrappers that vmap and grad put around `x`.

    Returns `x` itself if it has no wrapper. Raises MovedError where this torch lacks the function
    that takes a wrapper off.
    """
    while is_wrapped(x):
        x = _unwrapped(x)
    return x


_DISABLE: Final = "torch.utils._python_dispatch._disable_current_modes"
_without_dispatch: Any = private(
    _DISABLE,
    "hides our copies from modes of the user's: FlopCounter, selective checkpointing",
    "tensors observed inside a mode of the user's are not recorded",
)
_without_functions: Any = private(
    "torch._C.DisableTorchFunction",
    "hides our copies from modes such as `with torch.device(...)`",
    "tensors observed inside a mode of the user's are not recorded",
)


@contextmanager
def _both() -> Iterator[None]:
    with _without_dispatch(), _without_functions():
        yield


def without_modes() -> AbstractContextManager[None]:
    """Return a context manager in which none of the user's torch modes sees what anchorlib calls.

    Raises MovedError where torch has no such context: modes would treat our copies as the user's.
    """
    for context, name in (
        (_without_dispatch, _DISABLE),
        (_without_functions, "torch._C.DisableTorchFunction"),
    ):
        if context is None:
            raise MovedError(DOORS[name].said)
    return _both()
