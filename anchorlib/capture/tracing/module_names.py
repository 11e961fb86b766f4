"""Names of the modules and parameters of watched models, and which module owns which memory."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from anchorlib.capture.tracing.storage_makers import storage_key
from anchorlib.torch_private import WRAPPER_LINKS

__all__ = ["ModuleNames"]


class ModuleNames:
    """The names of watched modules, and which module owns each parameter and each storage.

    modules: the `id()` of each module -> its name in records.
    """

    def __init__(self) -> None:
        self.modules: dict[int, str] = {}
        self._owners: dict[int | None, str] = {}
        self._parameters: dict[int, str] = {}
        self._held: list[object] = []

    def know(self, modules: dict[str, nn.Module], parameters: dict[str, nn.Parameter]) -> None:
        """Add the modules and parameters of a watched model.

        modules, parameters: keyed by the names under which records show them.
        """
        self._held += [modules, parameters]  # an id identifies its object only while that lives
        self.modules |= {id(module): name for name, module in modules.items()}
        root = next(reversed(modules), "")
        for name, parameter in parameters.items():
            owner = name.rpartition(".")[0]
            self._parameters[id(parameter)] = owner if owner in modules else root

    def name_of(self, module: object) -> str | None:
        """Return the name of `module`; None where it belongs to no watched model."""
        return self.modules.get(id(module))

    def at(self, path: tuple[str, ...]) -> str:
        """Return the name of the module at `path`; "" where no watched model has it.

        path: the attributes from a model down to the module. Those in which wrappers keep a module
        (such as `_orig_mod` of torch.compile) are no part of the name.
        """
        name = ".".join(link for link in path if link not in WRAPPER_LINKS)
        return name if name in self.modules.values() else ""

    def owner(self, variable: object) -> str:
        """Return the name of the module that holds `variable`, a parameter of a watched model.

        "" for any other object.
        """
        return self._parameters.get(id(variable), "")

    def find_memory(self) -> None:
        """Look up each parameter's storage again, since an assignment to `.data` changes it.

        All other storages, which `own` has noted, are forgotten.
        """
        self._owners.clear()
        for parts in self._held[1::2]:
            for parameter in parts.values():  # type: ignore[attr-defined]
                self.own(storage_key(parameter), self._parameters[id(parameter)])

    def own(self, key: int | None, module: str) -> None:
        """Note, until `find_memory` is called, that a storage belongs to the module `module`.

        The storage holds a parameter of the module, a gradient, or optimizer state.
        key: the number that identifies the storage, from `storage_key`; None does nothing.
        """
        if key is not None:
            self._owners[key] = module

    def owner_among(self, keys: Iterable[int | None]) -> str:
        """Return the only module that owns some of these storages; "" where none or several do.

        keys: numbers that identify the storages, from `storage_keys`.
        """
        owned, owner = self._owners, ""
        for key in keys:
            module = owned.get(key)
            if module and module != owner:
                if owner:
                    return ""
                owner = module
        return owner
