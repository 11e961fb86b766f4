"""What stands between a call of torch and its kernel: modes, functorch, tracing, autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NoReturn

import torch

from anchorlib.torch_private.door import DOORS, MovedError, Reach, private

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

# Where a stack cannot be asked it is taken not to be empty: what follows is slower, and right.
_SLOWER: Final = "each record costs a few microseconds more"

function_modes = private(
    "torch._C._len_torch_function_stack",
    "how many modes of the user's see what is called",
    _SLOWER,
    instead=lambda: 1,
)
_dispatch_modes = private(
    "torch._C._len_torch_dispatch_stack",
    "how many modes of the user's see what is dispatched",
    f"{_SLOWER}, and operations are not traced",
    instead=lambda: 1,
)
dispatch_mode_at = private(
    "torch._C._get_dispatch_stack_at",
    "which mode is the uppermost, before ours is taken away",
    "operations are not traced",
    instead=None,
    reach=Reach.TRACED,
)

_dispatch_mode: Any = private(
    "torch.utils._python_dispatch.TorchDispatchMode",
    "shows each operation that torch dispatches",
    "operations are not traced",
    reach=Reach.TRACED,
)
DispatchMode: Any = _dispatch_mode or object

# What could not be put on the stack, or be taken away again, is never put there: a trace finds the
# stack in use, and says so.
_can_trace = _dispatch_mode is not None and dispatch_mode_at is not None
dispatch_modes: Any = _dispatch_modes if _can_trace else lambda: 1

is_tracing = private(
    "torch._C._is_tracing",
    "whether torch.jit.trace watches, which would take our copies for the model's",
    _SLOWER,
    instead=torch.jit.is_tracing,  # type: ignore[attr-defined]  # public, and not exported
)
is_any_autocast = private(
    "torch._C._is_any_autocast_enabled",
    "whether it is worth asking each device for its autocast",
    "each pass costs a few microseconds more",
    instead=lambda: True,
)

is_wrapped = private(
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "whether a tensor stands for one that vmap or grad has wrapped",
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
    """The tensor that holds the values of what vmap or grad has wrapped, else `x`."""
    while is_wrapped(x):
        x = _unwrapped(x)
    return x


_DISABLE: Final = "torch.utils._python_dispatch._disable_current_modes"
_without_dispatch: Any = private(
    _DISABLE,
    "keeps our copies from modes of the user's: FlopCounter, selective checkpointing",
    "what is observed inside a mode of the user's is not recorded",
)
_without_functions: Any = private(
    "torch._C.DisableTorchFunction",
    "the same for modes such as `with torch.device(...)`",
    "what is observed inside a mode of the user's is not recorded",
)


@contextmanager
def _both() -> Iterator[None]:
    with _without_dispatch(), _without_functions():
        yield


def without_modes() -> AbstractContextManager[None]:
    """A context in which no mode of the user's sees what is called.

    Raises MovedError where torch has none: our copies would be part of the user's program.
    """
    for found, name in (
        (_without_dispatch, _DISABLE),
        (_without_functions, "torch._C.DisableTorchFunction"),
    ):
        if found is None:
            raise MovedError(DOORS[name].said)
    return _both()
