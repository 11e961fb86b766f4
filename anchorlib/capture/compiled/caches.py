"""Compiled models, and the hooks that `watch` puts on them.

dynamo does not guard on the hooks of modules (`skip_nnmodule_hook_guards`): code that was compiled
before would go on running, and nothing would be recorded.

`torch.compile(model)` runs the hooks of the model itself outside the compiled code, where the
gradients of its outputs can be seen only in part (see `outside`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["forget_compiled_code", "take_hooks_inside"]

_log = logging.getLogger("anchorlib")


def forget_compiled_code() -> None:
    """If anything has been compiled, let it be compiled anew when it is called next."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is None or not _anything_compiled():
        return
    dynamo.reset()
    _log.warning(
        "anchorlib: watch() came after code was compiled, which would not have known its hooks: "
        "torch._dynamo.reset() was called, and what is called next is compiled anew; watch "
        "models before their first compiled call"
    )


def take_hooks_inside(model: object) -> Callable[[], None] | None:
    """If `torch.compile` has made `model`, let it compile the hooks too; what undoes that."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is None or type(model) is not dynamo.OptimizedModule:
        return None
    compiled: Any = model
    before = compiled.forward
    with dynamo.config.patch(wrap_top_frame=True):
        compiled._initialize()  # noqa: SLF001  # torch reads the setting here alone

    def undo() -> None:
        compiled.forward = before

    return undo


def _anything_compiled() -> bool:
    convert: Any = sys.modules.get("torch._dynamo.convert_frame")
    seen = getattr(getattr(convert, "input_codes", None), "seen", None)
    return bool(seen is None or seen)
