"""What each module was made with, for the run header: `LayerNorm((32,), eps=1e-05, …)`.

The class and `extra_repr` of a module, as printing the model shows them. Two runs whose modules say
different things compute different things, whatever else is equal.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from anchorlib.capture.masking import masked_value

__all__ = ["module_texts"]

MOST_MODULES = 1024
MOST_TEXT = 200


def module_texts(modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Header entries of modules that hold no others, as "module.NAME"; the first 1,024.

    modules: by the name under which their output is recorded.
    """
    leaves = [(name, one) for name, one in modules.items() if not any(one.children())]
    return {
        f"module.{name}": str(masked_value(name, _text(module)))
        for name, module in leaves[:MOST_MODULES]
    }


def _text(module: nn.Module) -> str:
    try:
        told = module.extra_repr()
    except Exception:  # noqa: BLE001  # a user's method, which training never calls
        told = "…"
    return f"{type(module).__name__}({' '.join(str(told).split())})"[:MOST_TEXT]
