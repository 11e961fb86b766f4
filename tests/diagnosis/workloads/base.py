"""What all workloads share: real images, optimizers, and the pairs that are made of them.

A workload is a frozen value that trains: each of its fields is something that a training can do
otherwise. A case is a pair of such values, of which it is known what the difference is.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import nn

from anchorlib.capture.sessions.session import Session

Start = Callable[..., Session]
KINDS = ("bug", "benign", "equal", "data", "incomplete")
UPDATES = ("*@updated", "*@delta", "*@opt.*")
"""The records of an optimizer."""


class EndedError(Exception):
    """The training died, as it was told to."""


@dataclass(frozen=True)
class Workload:
    """One training, whole: the same value and seed train the same, bit for bit.

    init, order: added to the seeds of the parameters, and of how samples are dealt.
    turned: whether each batch holds its samples in the opposite order.
    ends_at: the step before which the training raises an error. killed_at: the same, killed; only
        in a process of its own. decoupled: AdamW, else Adam.
    implementation: of the optimizer ("loop", "foreach" or "fused").
    """

    steps: int = 6
    batch: int = 16
    init: int = 0
    order: int = 0
    turned: bool = False
    threads: int = 1
    ends_at: int | None = None
    killed_at: int | None = None
    lr: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.999)
    adam_eps: float = 1e-8
    weight_decay: float = 0.01
    decoupled: bool = True
    implementation: str = "loop"
    set_to_none: bool = True
    evaluates: bool = False

    eps_of_noise = "float32"
    """What noise runs are perturbed by."""

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        raise NotImplementedError

    def but(self, changes: Mapping[str, Any]) -> Workload:
        """Another training."""
        return replace(self, **changes)

    def adam(self, parameters: Any, **changes: Any) -> torch.optim.Optimizer:
        """The optimizer."""
        own = replace(self, **changes)
        kind = torch.optim.AdamW if own.decoupled else torch.optim.Adam
        return kind(
            list(parameters),
            lr=own.lr,
            betas=own.betas,
            eps=own.adam_eps,
            weight_decay=own.weight_decay,
            foreach=own.implementation == "foreach",
            fused=own.implementation == "fused",
        )

    def sgd(self, parameters: Any, **changes: Any) -> torch.optim.Optimizer:
        """SGD with momentum."""
        options = {"lr": self.lr, "momentum": 0.9, "weight_decay": self.weight_decay} | changes
        return torch.optim.SGD(
            list(parameters), foreach=self.implementation == "foreach", **options
        )

    def draw(self, seed: int) -> None:
        """Begin the draws of the parameters."""
        torch.manual_seed(1000 * seed + self.init)

    def images(self, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """A batch of real digits a step: images (batch, 8, 8) in -1 to 1, and labels."""
        images, labels = digits()
        dealing = torch.Generator().manual_seed(77 + 1000 * seed + self.order)
        for step in range(self.steps):
            chosen = torch.randint(0, len(images), (self.batch,), generator=dealing)
            chosen = chosen.flip(0) if self.turned else chosen
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield images[chosen], labels[chosen]


@dataclass(frozen=True)
class Case:
    """A pair of trainings of one workload, and what is known of it.

    kind: bug, benign, equal, data or incomplete (B ended early). The kind is data where the models
        are given other inputs or begin with other parameters, whether by intent or by a mistake in
        the code that makes these: compare cannot tell the one from the other, and says so.
    changes: what B does otherwise. reference: what A does otherwise than the workload says.
    origin: selectors, as globs, of the records at which an expert would point: of a bug or of data.
    words: a regular expression of what names the fix. step: where the origin stands, None: any.
    """

    name: str
    kind: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    origin: tuple[str, ...] = ()
    words: str = ""
    step: int | None = None
    reference: Mapping[str, Any] = field(default_factory=dict)


@cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Real images of written digits, 1,797 of 8 × 8, and which digits they are."""
    from sklearn.datasets import load_digits  # which imports scipy: a second of a processor

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32) / 8 - 1
    return images, torch.tensor(found.target)


def cut(count: int, *tensors: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    """A batch as micro-batches."""
    return list(zip(*(tensor.chunk(count) for tensor in tensors), strict=True))


def warmed(step: int, warmup: int, steps: int) -> float:
    """The factor of a learning rate that rises, then falls as a cosine."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(steps, 1)))


def clear(optimizer: torch.optim.Optimizer, workload: Workload) -> None:
    """Forget the gradients."""
    optimizer.zero_grad(set_to_none=workload.set_to_none)


def renamed(model: nn.Module, names: Mapping[str, str]) -> None:
    """Call submodules otherwise, wherever they stand."""
    for module in list(model.modules()):
        children = list(module._modules.items())
        module._modules.clear()
        for name, child in children:
            module._modules[names.get(name, name)] = child
