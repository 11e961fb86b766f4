"""Calls functions when modules are imported, so that anchorlib need not import them itself.

Compilers take more than a second to import, and a training that does not compile never needs them.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

__all__ = ["ImportCallbacks"]

Meeting = Callable[[ModuleType], None]


class ImportCallbacks(importlib.abc.MetaPathFinder):
    """Calls a function with each wanted module: at once if it is loaded, else on its import.

    Imports are seen by an import finder on `sys.meta_path`, which this object is.

    wanted: the functions, each by the name of the module with which it is to be called.
    """

    def __init__(self, wanted: Mapping[str, Meeting]) -> None:
        self._wanted = wanted
        self._left: set[str] = set()

    def begin(self) -> None:
        """Call the functions of modules that are loaded, and watch imports for the other modules.

        The call returns without waiting for these.
        """
        self._left = {name for name in self._wanted if not _is_loaded(name)}
        for name, meet in self._wanted.items():
            if name not in self._left:
                meet(sys.modules[name])
        if self._left:
            sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Watch imports no longer: functions that were not called yet are never called."""
        self._left = set()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002  # importlib's own
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a wanted module; its loader also calls the function for the module.

        The spec comes from the other import finders. Return None for a module that is not wanted,
        and at a second call for it: importlib then asks the other finders itself.
        name: the module's name.
        """
        if name not in self._left:
            return None
        self._left.discard(name)  # so that the find_spec below asks the other finders
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load, meet = spec.loader.exec_module, self._wanted[name]

            def exec_module(module: ModuleType) -> None:
                load(module)
                meet(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _is_loaded(name: str) -> bool:
    module = sys.modules.get(name)
    initializing = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return module is not None and not initializing
