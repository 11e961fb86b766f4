"""The class of an optimizer and its hyperparameters, such as lr and betas, for the run header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["header_prefix", "hyperparameters", "scheduled"]

_NOT_TOLD = ("params", "param_names", "initial_lr")
_SHOWN = 8  # most parameter groups whose values are listed


def hyperparameters(optimizer: torch.optim.Optimizer, which: int = 0) -> dict[str, Any]:
    """Return the header entries of `optimizer`, by name: its class, groups and hyperparameters.

    "optimizer" has the name of the class, "optimizer.groups" the number of parameter groups if
    there are several. Each option of the groups, such as lr, has an entry, "optimizer.lr". A value
    that all groups share is given once; otherwise the values of the first eight groups are given as
    a list. Options that are False or None in all groups have no entry.

    which: the optimizer's number in the run, from 0 on. For number 1, "optimizer2" takes the place
        of "optimizer".
    """
    head = header_prefix(which)
    groups: Sequence[Mapping[str, Any]] = optimizer.param_groups
    keys = dict.fromkeys(key for group in groups for key in group if key not in _NOT_TOLD)
    entries: dict[str, Any] = {head: type(optimizer).__name__}
    if len(groups) > 1:
        entries[f"{head}.groups"] = len(groups)
    for key in keys:
        values = [_plain(group.get(key)) for group in groups]
        if any(value is not None and value is not False for value in values):
            same = all(value == values[0] for value in values)
            entries[f"{head}.{key}"] = values[0] if same else values[:_SHOWN]
    return entries


def header_prefix(which: int) -> str:
    """Return the first word of an optimizer's header entries, such as "optimizer2".

    which: the optimizer's number in the run: 0 gives "optimizer", 1 gives "optimizer2".
    """
    return f"optimizer{which + 1}" if which else "optimizer"


def scheduled(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the hyperparameters that a schedule may change, by name: numbers and lists of numbers.

    Only the first eight parameter groups are read. A hyperparameter is returned if it is a number,
    or a list of numbers, in each of them. If all these groups have one value, that value is
    returned; otherwise a list of each group's value. Tensors on a GPU are left out, since reading
    them would wait for the GPU.
    """
    numbers: dict[str, list[Any]] = {}
    groups: Sequence[Mapping[str, Any]] = optimizer.param_groups
    shown = groups[:_SHOWN]
    for group in shown:
        for key, value in group.items():
            if key in _NOT_TOLD:
                continue
            number = _number(value)
            if number is not None:
                numbers.setdefault(key, []).append(number)
    return {
        key: values[0] if all(one == values[0] for one in values) else values
        for key, values in numbers.items()
        if len(values) == len(shown)
    }


def _number(value: Any) -> Any:
    kind = type(value)
    if kind is float or kind is int:
        return value
    if kind is tuple or kind is list:
        return list(value) if all(type(one) in (float, int) for one in value) else None
    if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.numel() == 1:
        return value.item()
    return None


def _plain(value: Any) -> Any:
    """Return a number, bool, text, one-element tensor or short list of these as a JSON value.

    Return None for any other value. A list is short if it has at most eight items.
    """
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else None
    if isinstance(value, tuple | list):
        inner = [_plain(one) for one in value]
        return None if len(inner) > _SHOWN or None in inner else inner
    return value if isinstance(value, bool | int | float | str) else None
