"""Our entries in torch's dicts of hooks, which are left out of saved and copied objects.

torch keeps the hooks of modules, optimizers and tensors in dicts, and calls them in the order of
the dicts. `pickle` and `copy` include the dicts of modules and optimizers: a model that is saved
whole would carry our hooks into its file. So while a session is open, a function that we register
with `copyreg` takes OrderedDicts apart without our entries. That works for everything built on
pickle or copy: `torch.save`, `deepcopy`, `torch.package`, models sent to other processes, and
classes with a `__reduce__` or `__getstate__` of their own.

Our entries have negative numbers. torch numbers the hooks of a process from 0 on, and saves the
numbers: so the numbers of the user's hooks are what they would be without us.
"""

from __future__ import annotations

import copyreg
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from threading import Lock
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from anchorlib.torch_private import (
    forward_hook_dicts,
    forward_pre_hook_dicts,
    global_step_hooks,
    hooks_are_known,
    hooks_of_new,
    step_pre_hooks,
)

__all__ = [
    "HookHandle",
    "OwnHook",
    "add_forward_hook",
    "add_forward_pre_hook",
    "add_global_step_post_hook",
    "add_global_step_pre_hook",
    "add_hook",
    "add_post_accumulate_grad_hook",
    "add_step_pre_hook",
    "add_tensor_hook",
    "leave_out_of_copies",
]

_numbers = count(1)
_lock = Lock()  # sessions may begin and end in several threads


class OwnHook:
    """A hook of ours, which is recognized by this class in any of torch's dicts of hooks.

    If other code pickles such a hook, a function that does nothing is pickled in its place, which
    loads without anchorlib. (A bound method as a hook would be pickled with the whole session.)
    """

    __slots__ = ()

    def __deepcopy__(self, _memo: object) -> OwnHook:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, str]]:
        return (getattr, (nullcontext(), "__exit__"))


class HookHandle:
    """A handle on a hook of ours in torch's dicts of hooks, by which the hook can be removed.

    number: the hook's key in the dicts. dicts: the dict of hooks first, then the dicts of flags in
        which the hook has an entry too.
    """

    __slots__ = ("_dicts", "_number")

    def __init__(self, number: int, dicts: tuple[Any, ...]) -> None:
        self._number = number
        self._dicts = [ref(one) for one in dicts]

    @property
    def is_gone(self) -> bool:
        """Whether the module, optimizer or tensor that had the hook has been freed."""
        return self._dicts[0]() is None

    def remove(self) -> None:
        """Remove the hook, if it is still registered."""
        for one in self._dicts:
            hooks = one()
            if hooks is not None:
                hooks.pop(self._number, None)


def add_hook(hooks: Any, hook: Callable[..., Any], *marks: Any, first: bool = False) -> HookHandle:
    """Add `hook` to the dict `hooks`; return a handle by which the hook can be removed.

    hooks: one of torch's dicts of hooks. marks: dicts of flags; an entry with the hook's number in
        such a dict tells torch how to call the hook. first: whether `hook` is put before all other
        hooks in `hooks`, not behind them.
    """
    number = -next(_numbers)
    for one in (hooks, *marks):
        one[number] = hook  # in `marks` any true value would do; this one is known to be ours
    if first:
        hooks.move_to_end(number, last=False)
    return HookHandle(number, (hooks, *marks))


def _handle_of(handle: Any) -> HookHandle:
    """Return a handle of ours for a hook that was registered by torch's public method.

    Such a hook has a number from torch, as the user's hooks have.
    handle: what torch's method returned.
    """
    return HookHandle(handle.id, (handle.hooks_dict_ref(),))


def add_forward_pre_hook(
    module: nn.Module, hook: Callable[..., Any], *, kwargs: bool = False
) -> HookHandle:
    """Register `hook` to be called before the forward of `module` and before its other hooks.

    kwargs: whether `hook` is given the forward's keyword arguments too.
    Returns a handle by which the hook can be removed.
    """
    dicts = forward_pre_hook_dicts(module)
    if dicts is None:
        return _handle_of(module.register_forward_pre_hook(hook, prepend=True, with_kwargs=kwargs))
    hooks, with_kwargs = dicts
    return add_hook(hooks, hook, *([with_kwargs] if kwargs else []), first=True)


def add_forward_hook(
    module: nn.Module, hook: Callable[..., Any], *, kwargs: bool = False, always: bool = False
) -> HookHandle:
    """Register `hook` to be called after the forward of `module`; return a handle to remove it.

    kwargs: whether `hook` is given the forward's keyword arguments too. always: whether `hook` is
        called even if the forward raised.
    """
    dicts = forward_hook_dicts(module)
    if dicts is None:
        return _handle_of(
            module.register_forward_hook(hook, with_kwargs=kwargs, always_call=always)
        )
    hooks, with_kwargs, always_called = dicts
    marks = [with_kwargs] if kwargs else []
    if always:
        marks.append(always_called)
    return add_hook(hooks, hook, *marks)


def add_tensor_hook(leaf: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> HookHandle:
    """Register `hook` to be called with each gradient of `leaf`; return a handle to remove it.

    leaf: a tensor that no operation made.
    """
    own_way = type(leaf) not in {torch.Tensor, nn.Parameter}  # may define `register_hook`
    if own_way or not hooks_are_known:
        return _handle_of(leaf.register_hook(hook))
    return add_hook(hooks_of_new(leaf), hook)


def add_post_accumulate_grad_hook(
    leaf: torch.Tensor, hook: Callable[[torch.Tensor], Any]
) -> HookHandle:
    """Register `hook` to be called with `leaf` after each addition to `leaf.grad`.

    leaf: a parameter that is a DTensor. Returns a handle by which the hook can be removed.
    """
    return _handle_of(leaf.register_post_accumulate_grad_hook(hook))


def add_step_pre_hook(optimizer: Optimizer, hook: Callable[..., Any]) -> HookHandle:
    """Register `hook` to be called before each step of `optimizer`, after its present hooks.

    Returns a handle by which the hook can be removed.
    """
    hooks = step_pre_hooks(optimizer)
    return (
        _handle_of(optimizer.register_step_pre_hook(hook))
        if hooks is None
        else add_hook(hooks, hook)
    )


def add_global_step_post_hook(hook: Callable[..., Any]) -> HookHandle:
    """Register `hook` to be called after each step of any optimizer.

    Returns a handle by which the hook can be removed.
    """
    hooks = global_step_hooks(before=False)
    return (
        _handle_of(register_optimizer_step_post_hook(hook))
        if hooks is None
        else add_hook(hooks, hook)
    )


def add_global_step_pre_hook(hook: Callable[..., Any]) -> HookHandle:
    """Register `hook` to be called before each step of any optimizer.

    Returns a handle by which the hook can be removed.
    """
    hooks = global_step_hooks(before=True)
    return (
        _handle_of(register_optimizer_step_pre_hook(hook))
        if hooks is None
        else add_hook(hooks, hook)
    )


class _Reduction:
    """A function by which `pickle` and `copy` take an OrderedDict apart, without hooks of ours.

    All open sessions share one _Reduction, since they may end in any order.

    before: the function that `copyreg` had for OrderedDicts before; it takes apart what is left
        without our hooks. None if there was none.
    """

    def __init__(self, before: Callable[..., Any] | None) -> None:
        self.before = before
        self.sessions = 0

    def __call__(self, whole: OrderedDict[Any, Any]) -> Any:
        own = [key for key, value in whole.items() if isinstance(value, OwnHook)]
        if own:
            attributes, whole = vars(whole), whole.copy()
            vars(whole).update(attributes)
            for key in own:
                del whole[key]
        return whole.__reduce__() if self.before is None else self.before(whole)


def leave_out_of_copies() -> Callable[[], None]:
    """Leave our hooks out of pickled and copied OrderedDicts from now on, in the whole process.

    Returns a function that ends this, unless another session still needs it.
    """
    table: dict[type, Any] = copyreg.dispatch_table
    with _lock:
        there = table.get(OrderedDict)
        reduction = there if isinstance(there, _Reduction) else _Reduction(there)
        reduction.sessions += 1
        table[OrderedDict] = reduction

    def end() -> None:
        with _lock:
            reduction.sessions -= 1
            # Other code may have registered a function since, which calls ours.
            if reduction.sessions or table.get(OrderedDict) is not reduction:
                return
            if reduction.before is None:
                del table[OrderedDict]
            else:
                table[OrderedDict] = reduction.before

    return end
