"""An image of digits, learnt as a field: features from tables of several grids, and a small net."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import torch

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    cut,
    digits,
    renamed,
)
from tests.diagnosis.workloads.hashgrid import Average, Field

_ACROSS = 4
"""Digits side by side in the image, which has as many rows of them."""


@dataclass(frozen=True)
class Hasher(Workload):
    """A mosaic of digits is learnt from random places, whose brightness is interpolated.

    growth: whether grids grow finer over the "gaps" between them, or over their count ("levels").
    mirrors: whether near corners count as far ones. narrow: by how much rows of a dense grid are
        too short. primes: whether the hash multiplies rows. stacks: what features lie side by side
        by, "levels" or "features". casts: whether features pass through bfloat16.
    relative: whether errors are relative to what is told, which is "detached" or "attached".
        floor: what is added below. across: whether the image is read rows first.
    parts: micro-batches a step. schedules: the rate falls each "step" or "part". falls: by which
        factor. clears: whether gradients are forgotten.
    net_rate: the learning rate of the net. table_eps: Adam's, for the tables. all_decay: whether
        tables decay too.
    decay: of the average of the parameters. averages: "after" or "before" the step. restores:
        whether the parameters come back behind an evaluation of their average.
    low: whether the field is computed under autocast to bfloat16.
    logs: whether the error is told as a number. names: other names of submodules.
    interpolates: another way to write the same mathematics.
    """

    batch: int = 64
    lr: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 1e-2
    decoupled: bool = False
    growth: str = "gaps"
    mirrors: bool = False
    narrow: int = 0
    primes: bool = True
    stacks: str = "levels"
    casts: bool = False
    relative: str = "detached"
    floor: float = 0.01
    across: bool = False
    parts: int = 2
    schedules: str = "step"
    falls: float = 0.9
    clears: bool = True
    net_rate: float = 5e-3
    table_eps: float = 1e-15
    all_decay: bool = False
    decay: float = 0.95
    averages: str = "after"
    restores: bool = True
    low: bool = False
    logs: bool = False
    names: tuple[tuple[str, str], ...] = ()
    interpolates: str = "weights"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Field(self)
            renamed(model, dict(self.names))
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.falls)
            average = Average(model, self.decay)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            image = self._image(seed)
            for step, places in enumerate(self._places(seed)):
                if self.clears:
                    clear(optimizer, self)
                self._learn(model, schedule, places, self._seen(image, places))
                if self.averages == "before":
                    average.update()
                optimizer.step()
                if self.schedules == "step":
                    schedule.step()
                if self.averages == "after":
                    average.update()
                if step % 2:
                    self._evaluate(model, average, image)

    def _groups(self, model):
        """The tables and the net, each with its own rate, epsilon and decay."""
        return [
            {
                "params": list(model.grid.parameters()),
                "lr": self.lr,
                "eps": self.table_eps,
                "weight_decay": self.weight_decay if self.all_decay else 0.0,
            },
            {
                "params": list(model.net.parameters()),
                "lr": self.net_rate,
                "weight_decay": self.weight_decay,
            },
        ]

    def _image(self, seed):
        """A mosaic of digits in 0 to 1 (row, column)."""
        images, _ = digits()
        dealing = torch.Generator().manual_seed(31 + 1000 * seed + self.order)
        chosen = torch.randint(0, len(images), (_ACROSS * _ACROSS,), generator=dealing)
        tiles = (images[chosen] + 1) / 2
        rows = tiles.view(_ACROSS, _ACROSS, 8, 8).transpose(1, 2)
        return rows.reshape(8 * _ACROSS, 8 * _ACROSS)

    def _places(self, seed):
        """Places (place, 2), columns first, in 0 to 1, step by step."""
        dealing = torch.Generator().manual_seed(59 + 1000 * seed + self.order)
        for step in range(self.steps):
            places = torch.rand(self.batch, 2, generator=dealing)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield places.flip(0) if self.turned else places

    def _seen(self, image, places):
        """The image's brightness at places, between its pixels (place, 1)."""
        size = len(image)
        at = (places * size - 0.5).clamp(0, size - 1)
        low = at.long().clamp(max=size - 2)
        near = at - low
        (column, row), (right, down) = low.unbind(1), near.unbind(1)
        if self.across:
            column, row = row, column
        upper = image[row, column] * (1 - right) + image[row, column + 1] * right
        lower = image[row + 1, column] * (1 - right) + image[row + 1, column + 1] * right
        return (upper * (1 - down) + lower * down)[:, None]

    def _told(self, model, places):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            return model(places).to(places.dtype)

    def _learn(self, model, schedule, places, wanted):
        """The gradients of all micro-batches."""
        whole = 0.0
        for part in cut(self.parts, places, wanted):
            loss = anchorlib.anchor(self._missed(model, *part) / self.parts, "loss")
            loss.backward()
            if self.schedules == "part":
                schedule.step()
            if self.logs:
                whole += loss.item()

    def _missed(self, model, places, wanted):
        """The mean of squared errors, relative to what is told."""
        told = self._told(model, places)
        size = told.detach() if self.relative == "detached" else told
        return ((told - wanted).square() / (size.square() + self.floor)).mean()

    @torch.no_grad()
    def _evaluate(self, model, average, image):
        """The error of the averaged field over all pixels of the first digit."""
        average.enter()
        model.eval()
        axis = (torch.arange(8) + 0.5) / len(image)
        places = torch.cartesian_prod(axis, axis).flip(1)
        missed = self._told(model, places)[:, 0] - image[:8, :8].flatten()
        anchorlib.anchor(missed.square().mean(), "eval_loss")
        model.train()
        if self.restores:
            average.leave()


_WEIGHTS = ("weights.0@value", "grid.levels.0@value")
_LOSS = ("loss@*", "output@grad", "net@grad", "net.leave@grad")
_TABLES = ("grid.levels.*@updated", "grid.levels.*@delta", "grid.levels.*@opt.*")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "near corners count as far",
        "bug",
        {"mirrors": True},
        _WEIGHTS,
        rf"\bR?[Ss]ub|\b[Pp]rod|\b[Ww]here|{_GIVEN}|{_ORDER}",
        step=0,
    ),
    Case(
        "dense rows too short",
        "bug",
        {"narrow": 1},
        ("grid.levels.0.table@value",),
        rf"\bindices\b|\bindex|{_GIVEN}",
        step=0,
    ),
    Case(
        "hash without its prime",
        "bug",
        {"primes": False},
        ("grid.levels.2.table@value",),
        rf"\bindices\b|\bindex|{_GIVEN}",
        step=0,
    ),
    Case(
        "growth over one level too many",
        "bug",
        {"growth": "levels"},
        ("weights.1@value", "grid.levels.1.table@value", "grid.levels.1@value"),
        rf"\bMul|\bindices\b|{_GIVEN}|{_TIMES}",
        step=0,
    ),
    Case(
        "features side by side",
        "bug",
        {"stacks": "features"},
        ("grid@value",),
        rf"{_ORDER}|\bdim\b|\b[Ss]tack|\b[Cc]at(Backward|\b)|\bview|reshape|permute|transpose",
        step=0,
    ),
    Case(
        "features cast to bfloat16",
        "bug",
        {"casts": True},
        ("grid@value",),
        r"bfloat16|\bcast|to_?copy|dtype|precision",
        step=0,
    ),
    Case(
        "what errors are relative to attached",
        "bug",
        {"relative": "attached"},
        _LOSS,
        rf"{_DETACHED}|\b([Dd]iv|[Aa]dd|[Pp]ow)\w* .{{0,60}}(lacks|alone)"
        r"|(lacks|alone).{0,60}\b([Dd]iv|[Aa]dd|[Pp]ow)",
        step=0,
    ),
    Case(
        "larger floor of relative errors",
        "bug",
        {"floor": 0.1},
        _LOSS,
        rf"\bDiv|\bAdd(Backward|\b)|{_GIVEN}",
        step=0,
    ),
    Case(
        "image read rows first",
        "bug",
        {"across": True},
        _LOSS,
        rf"{_GIVEN}|\bSub",
        step=0,
    ),
    Case(
        "gradients not forgotten",
        "bug",
        {"clears": False},
        ("*.weight@grad",),
        r"zero_grad|accumulat|clear|zeroed|added to|(previous|earlier|last) step|step before",
        step=1,
    ),
    Case("rate falls at each part", "bug", {"schedules": "part"}, UPDATES, r"\blr\b", step=0),
    Case("larger eps for tables", "bug", {"table_eps": 1e-3}, _TABLES, r"\beps\b", step=0),
    Case("tables decay too", "bug", {"all_decay": True}, _TABLES, r"weight_decay", step=0),
    Case(
        "average before the step",
        "bug",
        {"averages": "before"},
        ("average.*@value", "*weight@value"),
        r"stale|before the (optimizer|step)|(one|a) (step|update) (behind|late|ago)|\blerp"
        r"|\bAdd(Backward|_|\b)|\bMul|computes it from",
        step=2,
    ),
    Case(
        "parameters not restored",
        "bug",
        {"restores": False},
        ("*weight@value",),
        r"restor|overwrit|in.place|copy_|changed (outside|between|without|by)|set (outside|between)"
        r"|same as average|is average\.|average\.\S+ (instead|rather)",
        step=2,
    ),
    Case("corners by lerp", "benign", {"interpolates": "lerp"}),
    Case("corners by a bag", "benign", {"interpolates": "bag"}),
    Case("one part for two", "benign", {"parts": 1}),
    Case("fused Adam", "benign", {"implementation": "fused"}),
    Case(
        "places turned, low precision",
        "benign",
        {"turned": True},
        reference={"low": True, "parts": 1},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("error told as a number", "equal", {"logs": True}),
    Case(
        "layers renamed",
        "equal",
        {"names": (("enter", "first"), ("middle", "hidden"), ("leave", "last"))},
    ),
    Case("died", "incomplete", {"ends_at": 3}),
]
