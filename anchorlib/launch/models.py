"""The models that a trainer watches, and what their names begin with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain, count

from torch import nn
from torch.optim.optimizer import Optimizer

from anchorlib.capture import unwrapped

__all__ = ["Model", "class_of", "free", "holds", "prefixes"]


@dataclass(eq=False, slots=True)
class Model:
    """A model that an optimizer of this process updates.

    callings: what the program calls it. prefix: what its names begin with. unknown: selectors
        that match nothing in it, with what there is to say. undo: takes our own hooks off it.
    """

    root: Callable[[], nn.Module | None]
    callings: list[str]
    prefix: str = ""
    unknown: dict[str, str] = field(default_factory=dict)
    undo: Callable[[], object] = lambda: None

    def own(self) -> set[int]:
        """The ids of its parameters; none once it is gone."""
        root = self.root()
        return set() if root is None else {id(p) for p in root.parameters()}


def holds(optimizer: Optimizer | None, parameters: set[int]) -> bool:
    """Whether `optimizer` holds one of these parameters, which are known by their ids."""
    groups = [] if optimizer is None else optimizer.param_groups
    return any(id(p) in parameters for group in groups for p in group["params"])


def prefixes(models: list[Model]) -> list[str]:
    """What the names of each model begin with."""
    if len(models) == 1:
        return [""]
    everyones = Counter(name for model in models for name in model.callings)
    found: list[str] = []
    for model in models:
        own = [name for name in model.callings if everyones[name] == 1]
        found.append(free(own, model, found))
    return found


def free(callings: Iterable[str], model: Model, taken: Collection[str]) -> str:
    """The first of `callings` that is not taken, else the class's name with a number."""
    name = class_of(model).__name__
    numbered = (f"{name}_{number}" for number in count(2))
    return next(one for one in chain(callings, [name], numbered) if one not in taken)


def class_of(model: Model) -> type:
    """The class of what it is inside its wrappers."""
    root = model.root()
    return type(None) if root is None else type(unwrapped(root))
