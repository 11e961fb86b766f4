"""What an optimizer was told: its class, learning rate, betas and the like, for the run header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["headed", "hyperparameters", "scheduled"]

_NOT_TOLD = ("params", "param_names", "initial_lr")
_SHOWN = 8  # groups beyond which a list says no more than its length


def hyperparameters(optimizer: torch.optim.Optimizer, which: int = 0) -> dict[str, Any]:
    """Header entries of `optimizer`, as "optimizer" (its class), "optimizer.lr" and so on.

    A value that all parameter groups share is said once, others as a list with one of each group.
    Switches that are off and options that were left to torch are not listed.

    which: its number among the optimizers of the run; from 1 on it is part of the names.
    """
    head = headed(which)
    groups: Sequence[Mapping[str, Any]] = optimizer.param_groups
    keys = dict.fromkeys(key for group in groups for key in group if key not in _NOT_TOLD)
    told: dict[str, Any] = {head: type(optimizer).__name__}
    if len(groups) > 1:
        told[f"{head}.groups"] = len(groups)
    for key in keys:
        values = [_plain(group.get(key)) for group in groups]
        if any(value is not None and value is not False for value in values):
            same = all(value == values[0] for value in values)
            told[f"{head}.{key}"] = values[0] if same else values[:_SHOWN]
    return told


def headed(which: int) -> str:
    """What the entries of a run's optimizer of this number begin with."""
    return f"optimizer{which + 1}" if which else "optimizer"


def scheduled(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What a schedule may change: numbers of the parameter groups, by name, without waiting.

    A value that all groups share is said once, others as a list; of a GPU's tensor nothing is.
    """
    told: dict[str, list[Any]] = {}
    groups: Sequence[Mapping[str, Any]] = optimizer.param_groups
    for group in groups[:_SHOWN]:
        for key, value in group.items():
            if key in _NOT_TOLD:
                continue
            number = _number(value)
            if number is not None:
                told.setdefault(key, []).append(number)
    return {
        key: values[0] if all(one == values[0] for one in values) else values
        for key, values in told.items()
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
    """A number, a word or a few of them, as JSON has them; None for anything else."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else None
    if isinstance(value, tuple | list):
        inner = [_plain(one) for one in value]
        return None if len(inner) > _SHOWN or None in inner else inner
    return value if isinstance(value, bool | int | float | str) else None
