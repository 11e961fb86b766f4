"""Finds the models that parameters belong to: the outermost modules that contain them.

An optimizer is given parameters, not models. Modules cannot be noted when they are made, because
copies and unpickled modules run no constructor. So all objects of this process are searched, once
for each optimizer whose parameters are not known yet, which takes about a tenth of a second.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable

from torch import nn

from anchorlib.torch_private import held_by_modules

__all__ = ["roots_of"]

_Parents = dict[int, list[nn.Module]]


def roots_of(parameters: Iterable[object]) -> list[nn.Module]:
    """Return the root modules of `parameters`, in the order of the parameters, each once.

    The root of a parameter is the outermost module that contains it; a parameter outside of modules
    has none. Several modules are outermost where, for example, both a ModuleList and DDP's wrapper
    contain a model. Then the root is the largest module that all of these contain: the model.
    """
    wanted = {id(parameter): place for place, parameter in enumerate(parameters)}
    modules = _all_modules()
    parents: _Parents = {}
    owners: list[tuple[int, nn.Module]] = []
    for module in modules:
        children, own = held_by_modules(module)
        for child in children:
            parents.setdefault(id(child), []).append(module)
        places = [wanted[id(p)] for p in own if id(p) in wanted]
        if places:
            owners.append((min(places), module))
    roots: dict[int, nn.Module] = {}
    for _, owner in sorted(owners, key=lambda one: one[0]):
        root = _root(owner, parents)
        roots.setdefault(id(root), root)
    return list(roots.values())


def _all_modules() -> list[nn.Module]:
    # isinstance would load lazy objects.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]


def _root(owner: nn.Module, parents: _Parents) -> nn.Module:
    above = _above(owner, parents)
    tops = {key for key in above if not parents.get(key)}
    if len(tops) == 1:
        return above[tops.pop()]
    shared = [
        module
        for module in above.values()
        if {key for key in _above(module, parents) if not parents.get(key)} == tops
    ]
    return max(shared, key=lambda module: _height(module, shared, parents), default=owner)


def _height(module: nn.Module, shared: list[nn.Module], parents: _Parents) -> int:
    """Return how many of the modules `shared` are inside `module` or are `module` itself.

    parents: by the id of each module that others contain: those that contain it directly.
    """
    return sum(id(module) in _above(one, parents) for one in shared)


def _above(module: nn.Module, parents: _Parents) -> dict[int, nn.Module]:
    """Return `module` and all modules that contain it, directly or not, by their ids.

    parents: by the id of each module that others contain: those that contain it directly.
    """
    above = {id(module): module}
    waiting = [module]
    while waiting:
        for parent in parents.get(id(waiting.pop()), ()):
            if id(parent) not in above:
                above[id(parent)] = parent
                waiting.append(parent)
    return above
