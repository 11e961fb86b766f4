"""The models that a watcher watches, and the prefixes of their tensors' names.

A watcher (see `auto_watcher`) records a program that nobody edited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain, count
from weakref import ref

from torch import nn
from torch.optim.optimizer import Optimizer

from anchorlib.capture import unwrapped

__all__ = ["Model", "holds", "prefixes", "unused_name"]


@dataclass(eq=False, slots=True)
class Model:
    """A model that an optimizer of this process updates.

    root: returns the model, or None once the model is freed.
    cls: the class of the model inside its wrappers, which is known after the model is freed, too.
    callings: the names that the program's variables give the model.
    prefix: what precedes the names of the model's tensors in the run; "" for nothing.
    unknown: the error's text for each selector that matches nothing in the model, by selector.
    undo: removes from the model the hooks that see which of its parts are called.
    """

    root: Callable[[], nn.Module | None]
    cls: type
    callings: list[str]
    prefix: str = ""
    unknown: dict[str, str] = field(default_factory=dict)
    undo: Callable[[], object] = lambda: None

    @classmethod
    def of(cls, root: nn.Module, callings: list[str]) -> Model:
        """Return the Model of the outermost module `root`, which the program calls `callings`."""
        return cls(ref(root), type(unwrapped(root)), callings)

    def own(self) -> set[int]:
        """Return the ids of the model's parameters; empty once the model is freed."""
        root = self.root()
        return set() if root is None else {id(p) for p in root.parameters()}


def holds(optimizer: Optimizer | None, parameters: set[int]) -> bool:
    """Return whether `optimizer` holds any of the parameters whose ids are in `parameters`."""
    groups = [] if optimizer is None else optimizer.param_groups
    return any(id(p) in parameters for group in groups for p in group["params"])


def prefixes(models: list[Model]) -> list[str]:
    """Return the prefix for the tensor names of each of `models`; "" for a single model.

    The prefix is a name that the program gives to this model alone, or else the name of the model's
    class, with a number where another model has that prefix already.
    """
    if len(models) == 1:
        return [""]
    everyones = Counter(name for model in models for name in model.callings)
    chosen: list[str] = []
    for model in models:
        own = [name for name in model.callings if everyones[name] == 1]
        chosen.append(unused_name(own, model, chosen))
    return chosen


def unused_name(callings: Iterable[str], model: Model, taken: Collection[str]) -> str:
    """Return a name for `model` that is not in `taken`.

    It is the first one of `callings` that is free, else the name CLASS of the model's class, else
    CLASS_2, CLASS_3 and so on.

    callings: names that the program's variables give the model.
    taken: the names of other models.
    """
    name = model.cls.__name__
    numbered = (f"{name}_{number}" for number in count(2))
    return next(one for one in chain(callings, [name], numbered) if one not in taken)
