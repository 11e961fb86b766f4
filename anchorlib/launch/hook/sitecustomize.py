"""Runs first in every Python that `anchor run` starts: waits for the import of torch, no more.

Python imports `sitecustomize` from PYTHONPATH when it starts. This file imports only modules that
Python has loaded by then, so that a process that never imports torch pays next to nothing. After
the import of torch, `anchorlib.launch.observe_optimizers` is called. An interpreter without
anchorlib writes one line, once, and its program runs unobserved. Another `sitecustomize` on the
path is run as it would be without this one.

Where ANCHOR_WATCH is set, without `anchor run`, Python executes the line in `anchorlib_watch.pth`
when it starts, which runs this file under another name and calls `await_torch`.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_TORCH = "torch"
_REQUEST = "ANCHOR_LAUNCH"
_WATCH = "ANCHOR_WATCH"


class TorchFinder:
    """An import finder that only notices the import of torch, after which `_observe` is called.

    `_observe` calls `anchorlib.launch.observe_optimizers`. Torch itself is found by the other
    finders.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return torch's spec, with a loader that calls `_observe` after it has loaded torch.

        Returns None for all other modules, and where torch is not installed. A program may ask for
        the spec and never import torch, so this finder stays on `sys.meta_path` until torch is
        imported.
        """
        if name != _TORCH:
            return None
        for finder in sys.meta_path:
            ask = getattr(finder, "find_spec", None)
            spec = ask(name, path, target) if ask is not None and finder is not self else None
            if spec is not None:
                self._follow(spec)
                return spec  # type: ignore[no-any-return]  # finders are of any kind
        return None

    def _follow(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # type: ignore[union-attr]  # the class's method applies again
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _observe()

        # Set on the instance, so that the module keeps the loader that other code expects.
        loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]


def await_torch() -> None:
    """Have `_observe` called as soon as torch is imported; at once if torch is imported already.

    Does not wait. `_observe` calls `anchorlib.launch.observe_optimizers`.
    """
    # Compared by name: a virtual environment executes each .pth file twice, and so this file.
    waits = any(type(finder).__name__ == TorchFinder.__name__ for finder in sys.meta_path)
    if _TORCH in sys.modules:
        _observe()
    elif not waits:
        sys.meta_path.insert(0, TorchFinder())


def _observe() -> None:
    try:
        from anchorlib.launch import observe_optimizers
    except Exception as fault:  # noqa: BLE001  # whatever it is, it must not break `import torch`
        asked = [os.environ.pop(name, None) for name in (_REQUEST, _WATCH)]
        if any(asked):  # popped above, so that children of this process do not write the line again
            reason = f"{type(fault).__name__}: {fault}"
            _say(f"{sys.executable} cannot load anchorlib ({reason}): the program runs unobserved")
        return
    observe_optimizers()


def _say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"anchor: {text}\n")


def _step_aside() -> None:
    """Remove this folder from `sys.path`, and run the `sitecustomize` that this file hides."""
    own = os.path.realpath(os.path.dirname(__file__))  # noqa: PTH120  # pathlib is not loaded yet
    sys.path[:] = [place for place in sys.path if os.path.realpath(place) != own]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if os.environ.get(_REQUEST):
        await_torch()
    _step_aside()
