"""Hooks at the places where `watch` has them: empty ones, and those that people write by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.observing.models import Training

__all__ = ["HandSaved", "hook_emptily"]


def hook_emptily(training: Training, *, everything: bool) -> None:
    """Hooks that do nothing, where the default selection has them, or that of `"*"`.

    Around the model's forward, behind each module's, on the gradient of each output, around the
    optimizer's step; for everything on each parameter as well.
    """
    training.model.register_forward_pre_hook(nothing, prepend=True, with_kwargs=True)
    for module in training.model.modules():
        module.register_forward_hook(hooks_gradients)
    training.optimizer.register_step_pre_hook(nothing)
    training.optimizer.register_step_post_hook(nothing)
    if everything:
        for parameter in training.model.parameters():
            parameter.register_hook(nothing_of)


def nothing(_object: object, _args: object, _kwargs: object) -> None:
    """A hook of a module or an optimizer."""


def nothing_of(_gradient: torch.Tensor) -> None:
    """A hook of a tensor."""


def hooks_gradients(_module: nn.Module, _inputs: Any, output: Any) -> None:
    """A forward hook that only hooks the gradients of the module's outputs."""
    for x in output if isinstance(output, tuple) else (output,):
        if isinstance(x, torch.Tensor) and x.requires_grad:
            x.register_hook(nothing_of)


class HandSaved:
    """Records the tensors of the default selection with torch.save, a file each, by plain hooks.

    Nothing is written twice: each file is new, as the store's are.
    """

    def __init__(self, training: Training, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._training = training
        self.saved = 0
        for name, module in training.model.named_modules():
            module.register_forward_hook(self._output_to(name or "model"))
        training.optimizer.register_step_pre_hook(self._gradients)

    def _save(self, name: str, x: torch.Tensor) -> None:
        self.saved += 1
        torch.save(x.detach(), self._folder / f"{self.saved}.{name}.pt")

    def _output_to(self, name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            self._save(name, output)
            if output.requires_grad:
                output.register_hook(lambda gradient: self._save(f"{name}@grad", gradient))

        return hook

    def _gradients(self, _optimizer: object, _args: object, _kwargs: object) -> None:
        for name, parameter in self._training.model.named_parameters():
            if parameter.grad is not None:
                self._save(f"{name}@grad", parameter.grad)
