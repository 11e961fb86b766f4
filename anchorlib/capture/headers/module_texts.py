"""The settings of each module as text, for the run header: `LayerNorm((32,), eps=1e-05, …)`.

The text is the class and `extra_repr` of a module, as printing the model shows them. For classes
that are not torch's it also has the module's attributes that are numbers, bools or texts (`eps`,
`scale`, `n_head`), which few `extra_repr` show. Two runs in which the texts of a module differ
compute different functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import xxhash
from torch import nn

from anchorlib.capture.headers.masking import masked_value

__all__ = ["module_texts", "module_tree"]

MOST_MODULES = 1024
MOST_TEXT = 200
MOST_WORD = 40


def module_texts(modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the header entries of at most 1,024 modules: their texts, by "module.NAME".

    Modules without submodules have an entry, and of the others those with settings as attributes.
    modules: the modules, by the name under which each one's output is recorded.
    """
    entries: dict[str, str] = {}
    for name, module in modules.items():
        if len(entries) == MOST_MODULES:
            break
        kept = list(_kept(module))
        if kept or not any(module.children()):
            entries[f"module.{name}"] = _text(module, kept)
    return entries


def module_tree(modules: Mapping[str, nn.Module]) -> str:
    """Return a text with the number of modules, and a digest of their names and classes.

    modules: the modules, by name.
    """
    lines = "\n".join(f"{name}: {type(module).__name__}" for name, module in modules.items())
    digest = xxhash.xxh3_64_hexdigest(lines.encode(errors="surrogatepass"))
    return f"{len(modules):,} modules, {digest}"


def _text(module: nn.Module, kept: list[str]) -> str:
    try:
        shown = module.extra_repr()
    except Exception:  # noqa: BLE001  # a user's method, which training never calls
        shown = "…"
    printed = str(masked_value("", " ".join(str(shown).split())))
    own = [one for one in kept if f"{one.partition('=')[0]}=" not in printed]
    return f"{type(module).__name__}({', '.join(filter(None, (printed, *own)))})"[:MOST_TEXT]


def _kept(module: nn.Module) -> Iterator[str]:
    """Yield a module's attributes that are numbers, bools or short texts, such as "eps=1e-05".

    Secrets are masked. Attributes whose names begin with "_" are left out, and `training`. None of
    the module's code is run. Nothing is yielded for a module of torch's own.
    """
    if type(module).__module__.partition(".")[0] == "torch":
        return
    for name, value in vars(module).items():
        if name.startswith("_") or name == "training" or type(value) not in (bool, int, float, str):
            continue
        shown = masked_value(name, value)
        if len(str(shown)) <= MOST_WORD:
            yield f"{name}={shown!r}"
