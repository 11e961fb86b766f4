"""The names of a model's parts: modules, parameters, buffers, outputs.

Names are module paths without the attribute names that wrappers add, such as DDP's `module.` and
`_orig_mod.` of torch.compile. A user's own module called `module` keeps its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import nn

from anchorlib.capture.naming.optimizer_state import state_kinds
from anchorlib.torch_private import children_of, is_wrapper_link, own_buffers, own_parameters

__all__ = [
    "NamedMembers",
    "has_forward",
    "named_leaves",
    "named_members",
    "state_keys",
    "tensor_kinds",
    "unwrapped",
]

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class NamedMembers:
    """The named parts of a model; each dict is in definition order, with each object once.

    An object with several names is listed by its first name. Names are the keys of each dict, with
    the prefix.

    root: the model itself.
    modules: those that have a forward of their own; the root, as "output", is the last.
    buffers: each as its module and its name in the module, since modules replace their buffers.
    input_name: the name under which the model's input is recorded.
    aliases: each further name of a shared module or tied parameter, with the first name.
    prefix: put before every name, with a dot; may be empty.
    """

    root: nn.Module
    modules: dict[str, nn.Module]
    parameters: dict[str, nn.Parameter]
    buffers: dict[str, tuple[nn.Module, str]]
    input_name: str
    aliases: dict[str, str]
    prefix: str = ""

    def first_name(self, name: str) -> str:
        """Return the name under which the module or parameter `name` is recorded.

        That is its first name if it has several, else `name` itself.
        """
        for alias, first in self.aliases.items():
            if name == alias or name.startswith(f"{alias}."):
                return first + name[len(alias) :]
        return name


def named_members(model: nn.Module, prefix: str = "") -> NamedMembers:
    """Return the named parts of `model`.

    prefix: put before each name, with a dot; "" puts nothing before names.
    """
    by_path, repeated = _walk(model)
    root = by_path.pop("")
    lead = f"{prefix}." if prefix else ""
    aliases = {lead + path: lead + first for path, first in repeated.items()}
    modules = {lead + path: module for path, module in by_path.items() if has_forward(module)}
    parameters: dict[str, nn.Parameter] = {}
    buffers: dict[str, tuple[nn.Module, str]] = {}
    seen: dict[int, str] = {}
    for path, module in {"": root, **by_path}.items():
        stem = lead + (f"{path}." if path else "")
        # Not `named_parameters`, whose names would contain the links of wrappers.
        for name, parameter in own_parameters(module).items():
            if parameter is None:
                continue
            if id(parameter) in seen:
                aliases[stem + name] = seen[id(parameter)]
                continue
            seen[id(parameter)] = stem + name
            parameters[stem + name] = parameter
        for name, buffer in own_buffers(module).items():
            if buffer is not None and id(buffer) not in seen:
                seen[id(buffer)] = stem + name
                buffers[stem + name] = (module, name)
    modules[_unused(lead + "output", modules)] = root
    input_name = _unused(lead + "input", modules)
    return NamedMembers(root, modules, parameters, buffers, input_name, aliases, prefix)


def has_forward(module: nn.Module) -> bool:
    """Return whether the class of `module` defines a forward; a ModuleList, for example, has none.

    The class is read by `getattr_static`: a ScriptModule has its forward only on the instance, and
    an ordinary look-up on its class would fail.
    """
    return inspect.getattr_static(type(module), "forward", None) is not nn.Module.forward


def _walk(root: nn.Module) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Return two dicts: modules by their first paths, and first paths by each further path.

    A path joins attribute names by dots; that of `root` is "". A module that is reached by several
    paths has further paths. A wrapper and the module that it wraps have one path, which means the
    inner module.
    """
    by_path: dict[str, nn.Module] = {}
    repeated: dict[str, str] = {}
    seen: dict[int, str] = {}

    def visit(module: nn.Module, path: str) -> None:
        if id(module) in seen:
            repeated[path] = seen[id(module)]
            return
        seen[id(module)] = path
        by_path[path] = module
        for name, child in children_of(module).items():
            if child is not None:
                inner = _is_wrapped(module, name)
                visit(child, path if inner else f"{path}.{name}" if path else name)

    visit(root, "")
    return by_path, repeated


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside all wrappers, such as those of DDP and torch.compile.

    `module` itself is returned if it is no wrapper.
    """
    while True:
        inside = [
            child
            for name, child in children_of(module).items()
            if child is not None and _is_wrapped(module, name)
        ]
        if not inside:
            return module
        module = inside[0]


def _is_wrapped(parent: nn.Module, link: str) -> bool:
    return is_wrapper_link(parent, link) or (link == "module" and isinstance(parent, _WRAPPERS))


def _unused(name: str, taken: Mapping[str, object]) -> str:
    """Return `name`, with as many underscores appended as it takes not to be in `taken`."""
    while name in taken:
        name += "_"
    return name


def named_leaves(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in a module's output or input, each after its name.

    A single tensor, and the first item of a list or tuple, have the name `name`. The item of index
    1 has `name:1`, a tensor in a dict or dataclass `name:key`, and a nested one `name:1.0` (index
    0 of the item of index 1).
    """
    for path, tensor in _leaves(value, ()):
        text = "" if path in ((), ("0",)) else ":" + ".".join(path)
        yield name + text, tensor


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    elif is_dataclass(value) and not isinstance(value, type):
        items = ((field.name, getattr(value, field.name)) for field in fields(value))
    for key, item in items:
        yield from _leaves(item, (*path, str(key)))


def state_keys(
    parts: NamedMembers, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, list[str]] | None:
    """Return, by parameter name, the kinds of state that `optimizers` keep of each parameter.

    Only parameters in `parts` that an optimizer holds are listed. A parameter's list is empty
    before its first step. Return None without optimizers.
    """
    if not optimizers:
        return None
    keys: dict[str, list[str]] = {}
    names = {id(p): name for name, p in parts.parameters.items()}
    for optimizer in optimizers:
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if id(p) in names:
                kinds = state_kinds(optimizer.state.get(p, {}))
                keys.setdefault(names[id(p)], []).extend(kinds)
    return keys


def tensor_kinds(
    parts: NamedMembers, state: Mapping[str, list[str]] | None, *, unknown_state: str | None = None
) -> list[tuple[str, str]]:
    """Return every (name, kind) of a model that can be known before its first step.

    state: the kinds of optimizer state by parameter name (see `state_keys`); None without
        optimizers. unknown_state: the kind that is listed in place of optimizer state for a
        parameter that has none yet, such as "opt.*"; None lists nothing there.
    """
    known = [(parts.input_name, kind) for kind in ("value", "grad")]
    known += [(name, kind) for name in parts.modules for kind in ("value", "grad")]
    for name, parameter in parts.parameters.items():
        known.append((name, "value"))
        if parameter.requires_grad:
            known.append((name, "pass_grad"))
        if state is not None and name in state:
            kinds = ["grad", "updated", "delta", *state[name]]
            if unknown_state and not state[name]:
                kinds.append(unknown_state)
            known += [(name, kind) for kind in kinds]
    known += [(name, "value") for name in parts.buffers]
    return known
