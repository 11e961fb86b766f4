"""Finds the names of a model's tensors, in PopTorch's spellings and in the order of execution."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from anchorlib.capture import named_leaves, named_members
from anchorlib.torch_private import own_buffers, own_parameters

__all__ = ["Trace", "Traced"]

# The state of torch's optimizers that PopTorch has a name for.
_STATE = {"exp_avg": "Accl1___", "exp_avg_sq": "Accl2___", "momentum_buffer": "Accl___"}


@dataclass(frozen=True, slots=True)
class Traced:
    """The tensors of a model that can be anchored, found by running one micro-batch.

    names: the tensors' names in PopTorch's spelling, in the order of execution.
    dtypes: by name, the dtype of each tensor that is no gradient and is not made by the optimizer.
    """

    names: tuple[str, ...]
    dtypes: dict[str, torch.dtype]


class Trace:
    """A context that notes the tensors which one forward and backward of `model` computes."""

    def __init__(self, model: nn.Module) -> None:
        self._parts = named_members(model)
        self._forward: dict[str, None] = {}
        self._backward: dict[str, None] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        root = self._parts.root
        self._handles.append(root.register_forward_pre_hook(self._inputs, with_kwargs=True))
        for name, module in self._parts.modules.items():
            self._handles.append(module.register_forward_pre_hook(self._before(name, module)))
            self._handles.append(module.register_forward_hook(self._after(name)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def see(self, name: str, tensor: torch.Tensor) -> None:
        """Note that `tensor` was computed under `name`, and let backward note its gradient."""
        self._forward[name] = None
        self._dtypes[name] = tensor.dtype
        if tensor.requires_grad:
            self._handles.append(tensor.register_hook(self._gradient(name)))

    def _inputs(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        for values in (list(args), dict(kwargs)):
            for name, tensor in named_leaves(self._parts.input_name, values):
                self.see(name, tensor)

    def _before(self, name: str, module: nn.Module) -> Callable[..., None]:
        prefix = "" if module is self._parts.root else f"{name}."

        def hook(_module: nn.Module, _args: Any) -> None:
            for local in (*own_parameters(module), *own_buffers(module)):
                tensor = self._state().get(prefix + local)
                if tensor is not None and prefix + local not in self._forward:
                    self.see(prefix + local, tensor)

        return hook

    def _after(self, name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            for leaf, tensor in named_leaves(name, output):
                self.see(leaf, tensor)

        return hook

    def _state(self) -> dict[str, torch.Tensor]:
        buffers = {
            name: buffer
            for name, (module, local) in self._parts.buffers.items()
            if (buffer := own_buffers(module).get(local)) is not None
        }
        return {**self._parts.parameters, **buffers}

    def _gradient(self, name: str) -> Callable[[torch.Tensor], None]:
        def hook(_gradient: torch.Tensor) -> None:
            self._backward[name] = None

        return hook

    def traced(self, optimizer: torch.optim.Optimizer | None) -> Traced:
        """Return the tensors noted so far, and those that `optimizer` will make when it steps.

        optimizer: None for an inference model, which has no optimizer.
        """
        names = dict(self._forward)
        names |= dict.fromkeys(self._state())  # parameters and buffers that no forward used
        names |= dict.fromkeys(f"Gradient___{name}" for name in self._backward)
        if optimizer is not None:
            updated = [name for name in self._parts.parameters if name in self._backward]
            for prefix in ("Accum___", "UpdatedVar___", *_state_prefixes(optimizer)):
                names |= dict.fromkeys(f"{prefix}{name}" for name in updated)
        dtypes = {name: tensor.dtype for name, tensor in self._state().items()}
        return Traced(tuple(names), dtypes | self._dtypes)


def _state_prefixes(optimizer: torch.optim.Optimizer) -> Iterable[str]:
    """Return PopTorch's prefixes for the names of the state that `optimizer` will keep."""
    defaults = optimizer.defaults
    if "betas" in defaults:
        return (_STATE["exp_avg"], _STATE["exp_avg_sq"])
    return (_STATE["momentum_buffer"],) if defaults.get("momentum") else ()
