"""Precipitation nowcasting: the next radar frames of moving echoes, under balanced losses."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut, digits
from tests.diagnosis.workloads.radar_net import Folded, Nowcaster

_SIZE, _SEEN, _AHEAD = 16, 4, 4
_FLOOR = -10.0
"""dBZ of what a radar does not hear."""
_BOUNDS, _WEIGHTS = (2.0, 5.0, 10.0, 30.0), (1.0, 2.0, 5.0, 10.0, 30.0)
"""Rain rates in mm/h from which an error counts more, and how much it counts."""


@dataclass(frozen=True)
class Radar(Workload):
    """Echoes are digits that drift and grow; the frames are their reflectivity in 0 to 1.

    span: the dBZ that 0 to 1 stands for. lead: how many frames after its input a target lies.
    unit: what the weights' bounds are compared with, "rain" rates or "dBZ". weighed: the frames
        that weights are made of, the "targets" or those "before". ranged: whether pixels beyond
        the radar's range are left out of the losses.
    groups: of the norm of a cell's gates. peeps: the cell that the output gate sees, "new" or
        "old". hands: how states reach the forecaster, "attached" or "detached". resets: whether
        the encoder begins each batch with zeros.
    truth: the probability that a true frame is the next input, at the first step. fades: by how
        much it falls from step to step. teaches: what a draw below it shows, the "truth" or the
        "forecast".
    wakes: whether the model is in training mode again after an evaluation. scores: whether an
        evaluation computes critical success indices too.
    clip, clips: the norm of gradients, and whether they are clipped "before" or "after" the update.
    schedules: the rate changes after each "step" or each "epoch" of two steps.
    parts: micro-batches a step. low: whether the net runs under autocast to bfloat16.
    norming, enlarging, gates, stems, keeps, collects, errors, gradients: other ways to write the
        same mathematics.
    """

    batch: int = 8
    decoupled: bool = False
    weight_decay: float = 0.0
    span: float = 70.0
    lead: int = 1
    unit: str = "rain"
    weighed: str = "targets"
    ranged: bool = True
    groups: int = 4
    peeps: str = "new"
    hands: str = "attached"
    resets: bool = True
    truth: float = 0.8
    fades: float = 0.1
    teaches: str = "truth"
    wakes: bool = True
    scores: bool = False
    clip: float = 0.3
    clips: str = "before"
    schedules: str = "step"
    parts: int = 1
    low: bool = False
    norming: str = "torch"
    enlarging: str = "torch"
    gates: str = "joined"
    stems: str = "each"
    keeps: str = "all"
    collects: str = "stacked"
    errors: str = "powers"
    gradients: str = "backward"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Nowcaster(self)
            optimizer = self._optimizer(model)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr, total_steps=8)
            session.watch(model, tensors="*", optimizer=optimizer)
            sky = torch.Generator().manual_seed(29 + 1000 * seed + self.order)
            draws = torch.Generator().manual_seed(31 + 1000 * seed)
            shown = self._frames(digits()[0][: self.batch], torch.Generator().manual_seed(5))
            for step, (images, _) in enumerate(self.images(seed)):
                frames = self._frames(images, sky)
                taught = self._taught(step, draws)
                clear(optimizer, self)
                for part in cut(self.parts, frames, taught):
                    self._learn(model, *part)
                self._update(model, optimizer)
                if self.schedules == "step" or step % 2:
                    schedule.step()
                if step % 2:
                    self._evaluate(model, shown)

    def _optimizer(self, model):
        if self.implementation == "own":
            return Folded(model.parameters(), self.lr, self.betas, self.adam_eps)
        return self.adam(model.parameters())

    def _frames(self, images, sky):
        """Sequences of frames (sample, frame, 1, y, x): each digit drifts, and grows or decays."""
        count, frames = len(images), _SEEN + _AHEAD
        place = torch.randint(0, _SIZE, (count, 2), generator=sky)
        wind = torch.randint(-2, 3, (count, 2), generator=sky)
        growth = 1 + 0.1 * torch.randn(count, generator=sky)
        ink = (images.to(torch.get_default_dtype()) + 1) / 2
        found = ink.new_full((count, frames, 1, _SIZE, _SIZE), _FLOOR)
        found[..., :8, :8] += 55 * ink[:, None, None]
        for at in range(count):
            for time in range(frames):
                echo = (found[at, time] - _FLOOR) * growth[at] ** time + _FLOOR
                moved = (place[at] + time * wind[at]).tolist()
                found[at, time] = echo.roll(moved, (1, 2))
        return (found.clamp(_FLOOR, 60.0) - _FLOOR) / self.span * _range()

    def _taught(self, step, draws):
        """After which frames the forecaster is shown the truth: scheduled sampling."""
        drawn = torch.rand(self.batch, _AHEAD - 1, generator=draws)
        return drawn < self.truth - self.fades * step

    def _told(self, model, frames, taught):
        seen, ahead = frames.split((_SEEN, _AHEAD), 1)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            return model(seen, ahead, taught)

    def _learn(self, model, frames, taught):
        """The gradients of one micro-batch."""
        squares, amounts = self._losses(self._told(model, frames, taught), frames)
        loss = squares + amounts
        for one, name in ((squares, "mse_loss"), (amounts, "mae_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        if self.gradients == "backward":
            loss.backward()
            return
        own = list(model.parameters())
        of_squares = torch.autograd.grad(squares, own, retain_graph=True)
        of_amounts = torch.autograd.grad(amounts, own)
        for one, first, second in zip(own, of_squares, of_amounts, strict=True):
            found = first + second
            one.grad = found if one.grad is None else one.grad + found

    def _losses(self, told, frames):
        """The balanced mean of squares and the balanced mean of amounts, a part's share."""
        begin = _SEEN - 1 + self.lead
        wanted = frames[:, begin : begin + _AHEAD]
        weights = self._weights(wanted if self.weighed == "targets" else frames[:, _SEEN - 1 : -1])
        inside = _range() if self.ranged else torch.ones_like(_range())
        count = self.batch * _AHEAD * inside.sum()
        weights, missed = weights * inside, told - wanted
        if self.errors == "powers":
            return (weights * missed**2).sum() / count, (weights * missed.abs()).sum() / count
        squares = torch.linalg.vector_norm(weights.sqrt() * missed) ** 2
        return squares / count, torch.linalg.vector_norm(weights * missed, ord=1) / count

    def _weights(self, frames):
        """How much an error counts at each pixel, by how hard it rains there."""
        heard = frames * self.span + _FLOOR
        if self.unit == "rain":
            heard = (10 ** (heard / 10) / 58.53) ** (1 / 1.56)
        weights = torch.tensor(_WEIGHTS, dtype=frames.dtype)
        return weights[torch.bucketize(heard, torch.tensor(_BOUNDS, dtype=frames.dtype))]

    def _update(self, model, optimizer):
        """Clip the gradients and step."""
        if self.clips == "before":
            torch.nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        optimizer.step()
        if self.clips == "after":
            torch.nn.utils.clip_grad_norm_(model.parameters(), self.clip)

    @torch.no_grad()
    def _evaluate(self, model, shown):
        """The losses of sequences that are not learnt from, without any truth shown."""
        model.eval()
        told = self._told(model, shown, torch.zeros(self.batch, _AHEAD - 1, dtype=torch.bool))
        anchorlib.anchor(sum(self._losses(told, shown)), "eval_loss")
        if self.scores:
            for bound in (0.2, 0.4, 0.6):
                rains, rained = told > bound, shown[:, _SEEN:] > bound
                _ = (rains & rained).sum() / (rains | rained).sum().clamp(min=1)
        model.train(self.wakes)


def _range():
    """Which pixels the radar reaches: a disc."""
    y, x = torch.meshgrid(*2 * (torch.arange(_SIZE) - (_SIZE - 1) / 2,), indexing="ij")
    return (y**2 + x**2 <= (_SIZE / 2) ** 2).to(torch.get_default_dtype())


_LOSS = ("mse_loss@*", "mae_loss@*", "loss@*", "output@grad")
_FED = ("stem*@value", "forecaster*@value", "output@value")
"""Where the forecaster is given its next frame, and what it makes of it."""
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES: tuple[Case, ...] = (
    Case(
        "weights of the frames before",
        "bug",
        {"weighed": "before"},
        _LOSS,
        rf"\bMul|\bIndex|indices|bucketize|\bslice|{_GIVEN}",
    ),
    Case(
        "bounds of rain rates taken for dBZ",
        "bug",
        {"unit": "dBZ"},
        _LOSS,
        rf"\bMul|\bPow|exponent|\bIndex|indices|bucketize|{_GIVEN}",
    ),
    Case(
        "pixels beyond the range count",
        "bug",
        {"ranged": False},
        _LOSS,
        rf"\bMul|\bDiv|\bmask|{_GIVEN}|{_TIMES}",
    ),
    Case(
        "targets one frame early",
        "bug",
        {"lead": 0},
        _LOSS,
        rf"\bSub(Backward|\b)|\bslice|{_ORDER}|{_GIVEN}",
    ),
    Case(
        "encoder's states detached",
        "bug",
        {"hands": "detached"},
        ("encoder*@*grad", "stem*@*grad"),
        rf"{_DETACHED}|no gradients?|without gradients?|(lacks|alone).{{0,60}}(Backward|gradient)",
    ),
    Case(
        "truth and forecast exchanged",
        "bug",
        {"teaches": "forecast"},
        _FED,
        rf"\bWhere|condition|computes it from|{_ORDER}|{_GIVEN}",
    ),
    Case(
        "output gate sees the old cell",
        "bug",
        {"peeps": "old"},
        ("encoder.cells.0@value", "encoder:0.0@value"),
        rf"\bMul|\bAdd(Backward|\b)|computes it from|{_GIVEN}",
    ),
    Case(
        "one group for all gates",
        "bug",
        {"groups": 1},
        ("encoder.cells.0.norm@value",),
        r"num_groups|\bgroups?\b.{0,20}\b[14]\b",
    ),
    Case(
        "gradients clipped after the update",
        "bug",
        {"clips": "after"},
        ("*@grad",),
        rf"\bclip|{_TIMES}",
    ),
    Case(
        "schedule of steps stepped by epochs",
        "bug",
        {"schedules": "epoch"},
        UPDATES,
        r"\blr\b|\bbetas?\b|learning rate",
        step=1,
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        _FED,
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=2,
    ),
    Case(
        "states kept from the batch before",
        "bug",
        {"resets": False},
        ("encoder*@value",),
        rf"\bzeros?\b|carried|\bkept\b|step before|earlier step|\bstates?\b|\bCat|{_GIVEN}",
        step=1,
    ),
    Case("stem of all frames at once", "benign", {"stems": "at once"}),
    Case("own group norm", "benign", {"norming": "own"}),
    Case("transposed convolutions among zeros", "benign", {"enlarging": "zeros"}),
    Case("balanced losses as norms", "benign", {"errors": "norms"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("Adam with folded corrections", "benign", {"implementation": "own"}),
    Case("gradients of each loss added", "benign", {"gradients": "each"}),
    Case(
        "frames and states convolved apart, low precision",
        "benign",
        {"gates": "apart"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*bias@value", "*peep@value")),
    Case("frames of another span of dBZ", "data", {"span": 80.0}, ("input*@value",)),
    Case("forecaster computed again", "equal", {"keeps": "edges"}),
    Case("forecasts joined along a new axis", "equal", {"collects": "joined"}),
    Case("success indices computed", "equal", {"scores": True}),
    Case("killed", "incomplete", {"killed_at": 3}),
)
