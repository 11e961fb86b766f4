"""Hears of each optimizer that a program constructs: that is what makes it a trainer.

torch has no hook for it, so `Optimizer.__init__` and `add_param_group` are wrapped; `torch.compile`
is, for models that are compiled once they have an optimizer. Until the first one is constructed
nothing else of anchorlib is loaded, and no module or backward is touched.
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
from anchorlib.launch.saying import say
from anchorlib.names import escape

if TYPE_CHECKING:
    from anchorlib.launch.trainer import Trainer

__all__ = ["observe_trainers"]

_trainer: Trainer | None = None
_request: Request | None = None


def observe_trainers() -> None:
    """From now on the models of each optimizer that is constructed here are recorded.

    torch has been imported. Does nothing the second time, or under ANCHOR_DISABLED.
    """
    global _request  # noqa: PLW0603  # one trainer a process
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
    Optimizer.__init__ = _followed(Optimizer.__init__, told=True)  # type: ignore[method-assign]
    Optimizer.add_param_group = _followed(  # type: ignore[method-assign]
        Optimizer.add_param_group, told=False
    )


def _compiling(original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compile`, after which the trainer looks at what it returned."""

    @functools.wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:  # noqa: A001  # its own name
        if (trainer := _trainer) is not None:
            _harmlessly(trainer.compiles)
        compiled = original(*args, **kwargs)
        if (trainer := _trainer) is not None:
            _harmlessly(lambda: trainer.wrapped(compiled))
        return compiled

    return compile


def _followed(original: Callable[..., Any], *, told: bool) -> Callable[..., Any]:
    """`original`, after which the trainer looks at the optimizer.

    told: it constructs one; else it adds parameters to one, which its construction does as well.
    """

    @functools.wraps(original)
    def followed(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(optimizer, *args, **kwargs)
        frame = sys._getframe(1)  # noqa: SLF001  # the documented way
        if told:
            _harmlessly(lambda: _this_trainer().constructed(optimizer, frame))
        elif (trainer := _trainer) is not None:
            _harmlessly(lambda: trainer.grown(optimizer, frame))
        return result

    return followed


def _harmlessly(look: Callable[[], object]) -> None:
    """Do so inside a call of the program's, which must not hear of what goes wrong."""
    try:
        look()
    except Exception as fault:  # noqa: BLE001  # of ours, or of the program's own classes
        say(f"a model is not observed: {escape(f'{type(fault).__name__}: {fault}')}")


def _tell_nothing() -> None:
    """The command's own process ends: say so where it has left no run at all."""
    store, name = os.environ.get("ANCHOR_STORE", ""), _request and _request.name
    if not name or _trainer is not None or "://" in store or _is_there(store, name):
        return
    if _request and _request.process != os.getpid():  # a child that was forked
        return
    say("nothing was recorded: no optimizer of a model's parameters was constructed")


def _is_there(store: str, name: str) -> bool:
    return is_rerun() or Path(store, f"{name}.zarr").exists()


def _this_trainer() -> Trainer:
    global _trainer  # noqa: PLW0603
    if _trainer is None:
        from anchorlib.launch.trainer import Trainer  # which loads all that records

        assert _request is not None
        _trainer = Trainer(_request)
    return _trainer


def _after_fork() -> None:
    """A child of a process that records is no trainer; a child of another may become one."""
    global _trainer  # noqa: PLW0603
    if _trainer is not None and not _trainer.rests_in_children:
        _trainer = None


os.register_at_fork(after_in_child=_after_fork)
