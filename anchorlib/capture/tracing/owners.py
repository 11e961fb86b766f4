"""What the modules and parameters of watched models are called, and whose memory is whose."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from anchorlib.capture.tracing.storages import storage_key
from anchorlib.torch_private import WRAPPER_LINKS

__all__ = ["Names"]


class Names:
    """What modules and parameters are called."""

    def __init__(self) -> None:
        self.modules: dict[int, str] = {}
        self._owners: dict[int, str] = {}
        self._parameters: dict[int, str] = {}
        self._held: list[object] = []

    def know(self, modules: dict[str, nn.Module], parameters: dict[str, nn.Parameter]) -> None:
        """Take over the names of a watched model, as its outputs and parameters have them."""
        self._held += [modules, parameters]  # an id is a name while its object lives
        self.modules |= {id(module): name for name, module in modules.items()}
        root = next(reversed(modules), "")
        for name, parameter in parameters.items():
            owner = name.rpartition(".")[0]
            self._parameters[id(parameter)] = owner if owner in modules else root

    def name_of(self, module: object) -> str | None:
        """What a module is called; None where it is none that is known."""
        return self.modules.get(id(module))

    def at(self, path: tuple[str, ...]) -> str:
        """The module at a path, as its outputs are called; empty where there is none."""
        name = ".".join(link for link in path if link not in WRAPPER_LINKS)
        return name if name in self.modules.values() else ""

    def owner(self, variable: object) -> str:
        """The module that holds a parameter; empty where it is none."""
        return self._parameters.get(id(variable), "")

    def find_memory(self) -> None:
        """Look where the parameters' memory is; it may have moved since."""
        self._owners.clear()
        for parts in self._held[1::2]:
            for parameter in parts.values():  # type: ignore[attr-defined]
                self.own(parameter, self._parameters[id(parameter)])

    def own(self, x: torch.Tensor, module: str) -> None:
        """Until the step ends the memory of `x` belongs to a module: a gradient, a state."""
        key = storage_key(x)
        if key is not None:
            self._owners[key] = module

    def owner_among(self, tensors: Iterable[torch.Tensor]) -> str:
        """The one module whose memory is among `tensors`; empty where there is not one."""
        found = {self._owners.get(key, "") for key in map(storage_key, tensors) if key is not None}
        found.discard("")
        return found.pop() if len(found) == 1 else ""
