"""A picture of digits that is fitted by flat Gaussians, as scenes are by splatting."""

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
)
from tests.diagnosis.workloads.splats_net import Renderer, Similarity, logit

_WIDE, _CROP = 24, 12
"""Pixels along an edge, of the picture and of a crop."""
_COUNT = 48
_HORIZON = 10
"""Steps in which the rate of the means falls to its end."""
_PALETTE = (
    (0.9, 0.2, 0.1),
    (0.1, 0.7, 0.3),
    (0.2, 0.3, 0.9),
    (0.9, 0.8, 0.1),
    (0.6, 0.1, 0.7),
    (0.1, 0.8, 0.8),
    (0.8, 0.5, 0.2),
    (0.4, 0.4, 0.4),
    (0.9, 0.4, 0.6),
)


@dataclass(frozen=True)
class Splatting(Workload):
    """Each step renders some crops over a random background, as the picture is laid over it.

    sorts: which splats come first, the "near" or the "far" ones. spread: whether scales enter
        covariances "squared" or "plain". passes: what light has passed where it meets a splat, all
        those "before" it or "itself too"; or, from sums, "logarithms". background: the "rest" of
        the light comes from it, "none" does, or it is the last "splat".
    weight: of the D-SSIM, and of L1 what is left to one. range: from black to white, as the
        similarity's constants know it. opacity_reg, scale_reg: of the mean opacity and scale.
    means_lr, scales_lr, rotations_lr, colours_lr: rates of their groups; lr: of the opacities.
    falls: whose rate falls, that of the "means" or of "all".
    prunes: steps from one pruning to the next. floor: the opacity below which splats are pruned.
        judges: what is held against it, the "opacity" or its "logit". widest: the scale above
        which they are.
    resets: after how many steps opacities are reset. ceiling: to what. written: as its "logit" or
        as the "opacity" itself. forgets: whether their moments are then cleared.
    parts: micro-batches a step.
    composes, conics, falloff, dead, windows, keeps: other ways to write the same
        mathematics.
    """

    batch: int = 4
    lr: float = 5e-2
    adam_eps: float = 1e-15
    weight_decay: float = 0.0
    decoupled: bool = False
    sorts: str = "near"
    spread: str = "squared"
    passes: str = "before"
    background: str = "rest"
    weight: float = 0.2
    range: float = 1.0
    opacity_reg: float = 0.01
    scale_reg: float = 0.01
    means_lr: float = 0.2
    scales_lr: float = 2e-2
    rotations_lr: float = 1e-2
    colours_lr: float = 2.5e-2
    falls: str = "means"
    prunes: int = 2
    floor: float = 0.08
    judges: str = "opacity"
    widest: float = 6.0
    resets: int = 4
    ceiling: float = 0.2
    written: str = "logit"
    forgets: bool = True
    parts: int = 1
    composes: str = "front to back"
    conics: str = "closed"
    falloff: str = "product"
    dead: str = "left out"
    windows: str = "square"
    keeps: str = "all"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            picture = _picture(seed)
            model = Renderer(self, picture[..., :3], _COUNT)
            similarity = Similarity(self)
            optimizer = self.adam(self._groups(model.splats))
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._falling())
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for step, corners in enumerate(self._corners(seed)):
                if step % 2 == 0:
                    self._evaluate(model, picture)
                background = torch.rand(3)
                clear(optimizer, self)
                for (part,) in cut(self.parts, corners):
                    loss = self._loss(model, similarity, picture, part, background)
                    (loss * (len(part) / len(corners))).backward()
                optimizer.step()
                schedule.step()
                if (step + 1) % self.prunes == 0:
                    self._prune(model.splats, optimizer)
                if step + 1 == self.resets:
                    self._reset(model.splats.opacities, optimizer)

    def _groups(self, splats):
        """Each kind of parameter at its own rate, the means first."""
        rates = {
            "means": self.means_lr,
            "log_scales": self.scales_lr,
            "rotations": self.rotations_lr,
            "colours": self.colours_lr,
            "opacities": self.lr,
        }
        return [{"params": [getattr(splats, name)], "lr": rate} for name, rate in rates.items()]

    def _falling(self):
        """The factors of the groups' rates, by the step."""

        def falling(step):
            return 0.1 ** min(step / _HORIZON, 1)

        def still(_):
            return 1.0

        return [falling, *[falling if self.falls == "all" else still] * 4]

    def _corners(self, seed):
        """The first row and column of each crop, step by step."""
        dealing = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
        for step in range(self.steps):
            corners = torch.randint(0, _WIDE - _CROP + 1, (self.batch, 2), generator=dealing)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield corners.flip(0) if self.turned else corners

    def _loss(self, model, similarity, picture, corners, background):
        """L1 and D-SSIM of crops, and what keeps splats faint and small."""
        rows = corners[:, 0, None, None] + torch.arange(_CROP)[:, None]
        columns = corners[:, 1, None, None] + torch.arange(_CROP)
        wanted = anchorlib.anchor(_laid(picture[rows, columns], background), "target")
        seen = model(_centres(rows, columns), background)
        l1 = (seen - wanted).abs().mean()
        dssim = 1 - similarity(seen, wanted)
        splats = model.splats
        faint = splats.opacities[splats.alive].sigmoid().mean()
        small = splats.log_scales[splats.alive].exp().mean()
        reg = self.opacity_reg * faint + self.scale_reg * small
        loss = (1 - self.weight) * l1 + self.weight * dssim + reg
        told = {"l1_loss": l1, "dssim_loss": dssim, "reg_loss": reg, "loss": loss}
        for name, one in told.items():
            anchorlib.anchor(one, name)
        return loss

    @torch.no_grad()
    def _evaluate(self, model, picture):
        """The signal-to-noise ratio of the whole picture over white."""
        model.eval()
        white = torch.ones(3)
        rows, columns = torch.arange(_WIDE)[None, :, None], torch.arange(_WIDE)[None, None]
        seen = model(_centres(rows, columns), white).clamp(0, 1)
        missed = (seen - _laid(picture[None], white)).square().mean()
        anchorlib.anchor(-10 * missed.log10(), "psnr")
        model.train()

    @torch.no_grad()
    def _prune(self, splats, optimizer):
        """Leave out what is faint or too wide from now on, and forget its moments."""
        told = splats.opacities.sigmoid() if self.judges == "opacity" else splats.opacities
        wide = splats.log_scales.exp().amax(1) > self.widest
        splats.alive &= ~((told < self.floor) | wide)
        for state in optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name][~splats.alive] = 0

    @torch.no_grad()
    def _reset(self, opacities, optimizer):
        """Make all splats faint."""
        opacities.clamp_(max=logit(self.ceiling) if self.written == "logit" else self.ceiling)
        if self.forgets:
            for name in ("exp_avg", "exp_avg_sq"):
                optimizer.state[opacities][name].zero_()


def _picture(seed):
    """Nine coloured digits (row, column, 4): colours, and how much ink there is."""
    images, _ = digits()
    dealing = torch.Generator().manual_seed(19 + 1000 * seed)
    chosen = images[torch.randint(0, len(images), (9,), generator=dealing)]
    ink = (chosen + 1).to(torch.get_default_dtype()) / 2
    ink = ink.view(3, 3, 8, 8).transpose(1, 2).reshape(_WIDE, _WIDE)
    colours = torch.tensor(_PALETTE).view(3, 3, 3)
    colours = colours.repeat_interleave(8, 0).repeat_interleave(8, 1)
    shade = torch.linspace(0.7, 1.1, _WIDE)[:, None, None]
    return torch.cat(((colours * shade).clamp(max=1), ink[..., None]), 2)


def _laid(picture, background):
    """A picture over a background, channels first."""
    colours, ink = picture[..., :3], picture[..., 3:]
    return (colours * ink + background * (1 - ink)).permute(0, 3, 1, 2)


def _centres(rows, columns):
    """Horizontal and vertical places of pixels."""
    rows, columns = torch.broadcast_tensors(rows, columns)
    return torch.stack((columns, rows), -1) + 0.5


_SEEN = ("composition@value", "output@value")
_ORDERED = ("splats@value", "splats:*@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES = [
    Case(
        "farthest splats first",
        "bug",
        {"sorts": "far"},
        _ORDERED,
        rf"\bsort|argsort|descending|flip|\bIndex|indices|{_ORDER}",
    ),
    Case(
        "light that has passed the splat itself",
        "bug",
        {"passes": "itself too"},
        _SEEN,
        rf"cumprod|\bSlice|\bslice|\bstart\b|\bpad|\bMul|{_GIVEN}|{_ORDER}",
    ),
    Case(
        "scales taken for variances",
        "bug",
        {"spread": "plain"},
        ("conics@value",),
        r"\b[Ss]qrt|\b[Pp]ow|square|\b[Ee]xp(Backward|\b)|\bMul|exponent",
    ),
    Case(
        "similarity's constants of bytes",
        "bug",
        {"range": 255.0},
        ("dssim_loss@*", "output@grad"),
        rf"\bAdd(Backward|\b)|\bDiv|\bother\b|\balpha\b|6\.5025|58\.5225|{_GIVEN}|{_TIMES}",
    ),
    Case(
        "losses' weights exchanged",
        "bug",
        {"weight": 0.8},
        ("l1_loss@grad", "dssim_loss@grad", "loss@*"),
        rf"\bMul|0\.[28]\b|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "no light from the background",
        "bug",
        {"background": "none"},
        _SEEN,
        rf"\bAdd(Backward|\b)|\bMul|input:1|background|{_GIVEN}",
    ),
    Case(
        "every rate falls",
        "bug",
        {"falls": "all"},
        UPDATES,
        r"\blr\b",
        step=1,
    ),
    Case(
        "pruned by logits",
        "bug",
        {"judges": "logit"},
        ("splats.alive@value", *_ORDERED),
        r"\balive\b|\bmask|\bIndex|indices|\bshapes?\b|\bsizes?\b|\d+ of \d+|nonzero",
        step=2,
    ),
    Case(
        "opacity reset to a logit of 0.2",
        "bug",
        {"written": "opacity"},
        ("splats.opacities@value", "splats:4@value"),
        rf"clamp|\breset|overwrit|written|in.place|outside|between|by hand|{_TIMES}",
        step=4,
    ),
    Case(
        "moments kept at the reset",
        "bug",
        {"forgets": False},
        tuple(f"splats.opacities@{kind}" for kind in ("updated", "delta", "opt.*")),
        r"exp_avg|moment|\bstate\b|\bbetas?\b|zeros",
        step=4,
    ),
    Case("light by logarithms", "benign", {"passes": "logarithms"}),
    Case("from back to front", "benign", {"composes": "back to front"}),
    Case("background as the last splat", "benign", {"background": "splat"}),
    Case("conics by inverses", "benign", {"conics": "inverse"}),
    Case("opacity in the exponent", "benign", {"falloff": "exponent"}),
    Case("dead splats transparent", "benign", {"dead": "transparent"}),
    Case("windows in two passes", "benign", {"windows": "lines"}),
    Case("2 micro-batches of crops", "benign", {"parts": 2}),
    Case(
        "other init",
        "data",
        {"init": 1},
        tuple(
            f"splats.{name}@value"
            for name in ("means", "log_scales", "rotations", "colours", "opacities", "depths")
        ),
    ),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("alphas computed again", "equal", {"keeps": "conics"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
