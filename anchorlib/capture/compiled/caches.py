"""Compiled models, and the hooks that `watch` puts on them.

dynamo does not guard on the hooks of modules (`skip_nnmodule_hook_guards`): code that was compiled
before would go on running, and nothing would be recorded.

`torch.compile(model)` runs the hooks of the model itself outside the compiled code, where the
gradients of its outputs can be seen only in part (see `outside`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from anchorlib.torch_private import compile_hooks_of, forget_compiled

__all__ = ["forget_compiled_code", "take_hooks_inside"]

_log = logging.getLogger("anchorlib")


def forget_compiled_code() -> None:
    """If anything has been compiled, let it be compiled anew when it is called next."""
    if forget_compiled():
        _log.warning(
            "anchorlib: watch() came after code was compiled, which would not have known its "
            "hooks: torch._dynamo.reset() was called, and what is called next is compiled anew; "
            "watch models before their first compiled call"
        )


def take_hooks_inside(model: object) -> Callable[[], None] | None:
    """If `torch.compile` has made `model`, let it compile the hooks too; what undoes that."""
    return compile_hooks_of(model)
