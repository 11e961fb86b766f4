"""Notices each optimizer that a program constructs, so that the models it updates are recorded.

torch has no hook for the construction of an optimizer, so `Optimizer.__init__` and
`add_param_group` are wrapped. `torch.compile` is wrapped too, since a model may be compiled after
its optimizer was constructed. Until the first optimizer is constructed, nothing else of anchorlib
is loaded, and no module or backward is touched. The first optimizer makes an `AutoWatcher`, which
opens the session.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorlib.errors import AnchorError
from anchorlib.launch.request import Request, is_rerun
from anchorlib.launch.stderr_lines import say
from anchorlib.names import escape

if TYPE_CHECKING:
    from anchorlib.launch.auto_watcher import AutoWatcher

__all__ = ["observe_optimizers"]

_watcher: AutoWatcher | None = None
_request: Request | None = None


def observe_optimizers() -> None:
    """Record, from now on, the models of each optimizer that this process constructs.

    What to record is read from the environment (see `request`). Where the environment has no valid
    request, a line on stderr says so, and nothing is recorded. Does nothing at a second call, or
    where ANCHOR_DISABLED is set and not 0. The caller has to wait until torch is imported.
    """
    global _request  # noqa: PLW0603  # one watcher in each process
    if _request is not None or os.environ.get("ANCHOR_DISABLED", "0") not in ("", "0"):
        return
    try:
        _request = Request.of_environment()
    except AnchorError as fault:
        say(f"the program runs unobserved: {fault}")
        return
    if _request.process == os.getpid():
        atexit.register(_tell_nothing)
    import torch
    from torch.optim.optimizer import Optimizer

    torch.compile = _compiling(torch.compile)
    Optimizer.__init__ = _followed(Optimizer.__init__, constructs=True)  # type: ignore[method-assign]
    Optimizer.add_param_group = _followed(  # type: ignore[method-assign]
        Optimizer.add_param_group, constructs=False
    )


def _compiling(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `original`, which is `torch.compile`, wrapped so that the watcher sees each call.

    Before a call the watcher adds waiting optimizers; after it, the watcher is given the compiled
    model.
    """

    @functools.wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:  # noqa: A001  # its own name
        if (watcher := _watcher) is not None:
            _harmlessly(watcher.compiles)
        compiled = original(*args, **kwargs)
        if (watcher := _watcher) is not None:
            _harmlessly(lambda: watcher.wrapped(compiled))
        return compiled

    return compile


def _followed(original: Callable[..., Any], *, constructs: bool) -> Callable[..., Any]:
    """Return `original`, a method of Optimizer, wrapped so that the watcher is told of each call.

    The watcher is told after the call. Only the constructor makes a watcher where there is none.

    constructs: true for the constructor, false for `add_param_group`, which the constructor calls
        too.
    """

    @functools.wraps(original)
    def followed(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(optimizer, *args, **kwargs)
        frame = sys._getframe(1)  # noqa: SLF001  # no public way to the caller's frame
        if constructs:
            _harmlessly(lambda: _this_watcher().constructed(optimizer, frame))
        elif (watcher := _watcher) is not None:
            _harmlessly(lambda: watcher.grown(optimizer, frame))
        return result

    return followed


def _harmlessly(look: Callable[[], object]) -> None:
    """Call `look`, and write a line to stderr if it raises.

    The call happens inside a call by the user's program, which must not see anchorlib's exceptions.
    """
    try:
        look()
    except Exception as fault:  # noqa: BLE001  # of ours, or of the program's own classes
        say(f"a model is not observed: {escape(f'{type(fault).__name__}: {fault}')}")


def _tell_nothing() -> None:
    """Write to stderr that nothing was recorded, if this process made no watcher and no run exists.

    Called when the command's first process ends. Does nothing where the store is a URL, where the
    run has no name, in a forked child, and in a rerun (see `is_rerun`).
    """
    store, name = os.environ.get("ANCHOR_STORE", ""), _request and _request.name
    if not name or _watcher is not None or "://" in store or _is_there(store, name):
        return
    if _request and _request.process != os.getpid():  # in a forked child
        return
    say("nothing was recorded: no torch.optim.Optimizer of a model's parameters was constructed")


def _is_there(store: str, name: str) -> bool:
    return is_rerun() or Path(store, f"{name}.zarr").exists()


def _this_watcher() -> AutoWatcher:
    global _watcher  # noqa: PLW0603
    if _watcher is None:
        from anchorlib.launch.auto_watcher import AutoWatcher  # loads all of anchorlib's recording

        assert _request is not None
        _watcher = AutoWatcher(_request)
    return _watcher


def _after_fork() -> None:
    """Forget the watcher in a forked child if the watcher has no session.

    Such a child may record models itself. The child of a process that records keeps the watcher,
    which does nothing there, and so the child never records anything.
    """
    global _watcher  # noqa: PLW0603
    if _watcher is not None and not _watcher.rests_in_children:
        _watcher = None


os.register_at_fork(after_in_child=_after_fork)
