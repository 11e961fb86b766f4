"""Compiled models, and the hooks that `watch` puts on them.

dynamo does not guard on the hooks of modules (`skip_nnmodule_hook_guards`): code that was compiled
before `watch` would go on running without the hooks, and nothing would be recorded.

`torch.compile(model)` runs the model's own hooks outside the compiled code, where only a part of
its outputs' gradients can be seen (see `output_gradients`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from anchorlib.torch_private import compile_hooks_of, forget_compiled

__all__ = ["forget_compiled_code", "take_hooks_inside"]

_log = logging.getLogger("anchorlib")


def forget_compiled_code() -> None:
    """Have all code that torch.compile has compiled in this process compiled anew when called next.

    A warning is logged. Does nothing if no code was compiled.
    """
    if forget_compiled():
        _log.warning(
            "anchorlib: watch() was called after code was compiled, which would not run its hooks: "
            "torch._dynamo.reset() was called, so that code is compiled anew when it is called "
            "next; watch models before their first compiled call"
        )


def take_hooks_inside(model: object) -> Callable[[], None] | None:
    """Have a compiled model run the hooks on the model inside it in its compiled code.

    model: the object that `torch.compile` returned; for any other object nothing is done.
    Returns a function that undoes the change; None where nothing was done.
    """
    return compile_hooks_of(model)
