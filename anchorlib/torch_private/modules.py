"""Private names of modules: their parts, their hooks, and how torch.jit scripts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import nn

from anchorlib.torch_private.door import AffectedPrograms, is_a, later, private, tell

__all__ = [
    "CHILDREN",
    "FORWARD_HOOKS",
    "WRAPPER_LINKS",
    "children_of",
    "forward_hook_dicts",
    "forward_pre_hook_dicts",
    "held_by_modules",
    "is_wrapper_link",
    "own_buffers",
    "own_parameters",
    "wrap_scripting",
]

_MODULE: Final = vars(nn.Module())


def _kept(name: str) -> Callable[[], object]:
    return lambda: _MODULE.get(name)


def _dicts(*names: str) -> Callable[[], object]:
    """Return a probe for `private`: True where modules have all dicts `names`, None elsewhere."""
    return lambda: all(isinstance(_MODULE.get(name), dict) for name in names) or None


# -- parts

_ASKED: Final = "public methods are used instead, which leave out second names of shared objects"
_parameters = private(
    "torch.nn.Module._parameters",
    "the parameters of one module, each under its own name",
    _ASKED,
    probe=_kept("_parameters"),
    kind=is_a(dict),
)
_buffers = private(
    "torch.nn.Module._buffers",
    "the buffers of one module, each under its own name",
    _ASKED,
    probe=_kept("_buffers"),
    kind=is_a(dict),
)
CHILDREN: Final = "_modules"
"""The name of the attribute in which a module keeps its submodules."""

_children = private(
    f"torch.nn.Module.{CHILDREN}",
    "the submodules of one module, with each name of a shared one",
    _ASKED,
    probe=_kept(CHILDREN),
    kind=is_a(dict),
)


def own_parameters(module: nn.Module) -> Mapping[str, nn.Parameter | None]:
    """Return the parameters of `module` itself, by name, without those of its submodules."""
    if _parameters is None:
        return dict(module.named_parameters(recurse=False))
    return module._parameters


def own_buffers(module: nn.Module) -> Mapping[str, torch.Tensor | None]:
    """Return the buffers of `module` itself, by name; a ScriptModule's mapping has no `get`."""
    if _buffers is None:
        return dict(module.named_buffers(recurse=False))
    return module._buffers


def children_of(module: nn.Module) -> Mapping[str, nn.Module | None]:
    """Return the direct submodules of `module`, by name; a shared one under each of its names."""
    if _children is None:
        return dict(module.named_children())
    children: Mapping[str, nn.Module | None] = getattr(module, CHILDREN)
    return children


def held_by_modules(module: nn.Module) -> tuple[list[object], list[object]]:
    """Return the submodules and the parameters that `module` itself has, as two lists.

    Both are empty before the module's constructor has begun.
    """
    held = vars(module)
    if _parameters is None or _children is None:
        return list(module.children()), list(module.parameters(recurse=False))
    children, parameters = held.get(CHILDREN), held.get("_parameters")
    return (
        list(children.values()) if isinstance(children, dict) else [],
        list(parameters.values()) if isinstance(parameters, dict) else [],
    )


WRAPPER_LINKS: Final = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
)
"""The attributes in which torch.compile, FSDP and checkpoint_wrapper keep the module they wrap."""


def _wraps() -> object:
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
    from torch.distributed.fsdp import _common_utils

    links = {
        next(iter(vars(torch.compile(nn.Identity()))[CHILDREN])),
        checkpoint_wrapper._CHECKPOINT_WRAPPED_MODULE,
        _common_utils.FSDP_WRAPPED_MODULE,
    }
    return links if links == WRAPPER_LINKS else None


_links = later(
    "_orig_mod, _fsdp_wrapped_module, _checkpoint_wrapped_module",
    "leaves wrappers out of the names of wrapped modules",
    "names of tensors in a wrapped model contain the wrapper's attribute",
    reach=AffectedPrograms.EAGER,
    probe=_wraps,
    kind=is_a(set),
)
_WRAPPING: Final = {
    "torch._dynamo.eval_frame",
    "torch.distributed.fsdp.fully_sharded_data_parallel",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
}
"""The modules of torch that define the wrappers.

A wrapper defined there that has none of the attributes in `WRAPPER_LINKS` names it differently in
this torch, which is warned of.
"""


def is_wrapper_link(module: nn.Module, name: str) -> bool:
    """Return whether `name` is an attribute in which wrappers (torch.compile, FSDP) keep a module.

    Warns, once, if `module` is a wrapper that keeps its module under a name not known here.
    """
    if name in WRAPPER_LINKS:
        return True
    # The class first: the children of a TorchScript module cannot be iterated over.
    is_wrapper = any(one.__module__ in _WRAPPING for one in type(module).__mro__)
    if is_wrapper and WRAPPER_LINKS.isdisjoint(children_of(module)):
        tell(_links)
    return False


# -- hooks

FORWARD_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks")
"""The dicts in which a module keeps the hooks of its forward."""

_SAVED: Final = "a model that is saved whole while it is watched contains a hook that does nothing"
_after_forward: Any = private(
    "torch.nn.Module._forward_hooks",
    "registers hooks after a forward that copies and files leave out",
    _SAVED,
    probe=_dicts("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    kind=is_a(bool),
)
_before_forward: Any = private(
    "torch.nn.Module._forward_pre_hooks",
    "registers hooks before a forward that copies and files leave out",
    _SAVED,
    probe=_dicts("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    kind=is_a(bool),
)


def forward_hook_dicts(module: nn.Module) -> tuple[Any, Any, Any] | None:
    """Return the module's own dicts of the hooks that run after its forward.

    The first dict holds the hooks by key. The second has the keys of the hooks that take keyword
    arguments, the third the keys of the hooks that run even if the forward raises. Returns None
    where this torch lacks one of these dicts.
    """
    if _after_forward is None:
        return None
    return (
        module._forward_hooks,
        module._forward_hooks_with_kwargs,
        module._forward_hooks_always_called,
    )


def forward_pre_hook_dicts(module: nn.Module) -> tuple[Any, Any] | None:
    """Return the module's own dicts of the hooks that run before its forward.

    The first dict holds the hooks by key, the second has the keys of the hooks that take keyword
    arguments. Returns None where this torch lacks one of these dicts.
    """
    if _before_forward is None:
        return None
    return module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs


# -- torch.jit

_scripting: Any = private(
    "torch.jit._recursive.create_script_module",
    "hides our hooks from torch.jit.script, which would compile them",
    "a watched model cannot be scripted before the session has ended",
)


def wrap_scripting(wrap: Callable[[Any], Any]) -> None:
    """Replace torch's function that scripts a module by `wrap(function)`, if it is there."""
    if _scripting is not None:
        torch.jit._recursive.create_script_module = wrap(_scripting)
