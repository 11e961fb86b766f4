"""Clips of moving digits: which way does it go? Mixup, dropped frames, and an average for tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, digits, warmed
from tests.diagnosis.workloads.video_net import Nesterov, Net

_FRAMES, _SIZE, _DIGIT = 6, 16, 8
_ROOM = _SIZE - _DIGIT
_WAYS = ((1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1))
"""Columns and rows that a digit moves from frame to frame, class by class."""
_SHOWN = 8
"""Clips that the evaluation sees."""


@dataclass(frozen=True)
class Video(Workload):
    """Every clip shows a digit on its way in one of eight directions, which is the class.

    mirrors: whether a mirrored clip's class is mirrored too. mixes: how mixup weighs the classes,
        as the "clips" or "exchanged". smoothing: of labels. drops: the share of dropped frames.
    masks: whether dropped frames are kept out of the attention. over: what its softmax is over,
        "frames" or "batch". learns: whether gradients reach its scores.
    shifting: beyond the ends "zeros", or once round by "roll".
    unfolds: whether folded frames are unfolded as "clips" or as if "frames" came first.
    warmup: steps of rising rate. ticks: how often the schedule steps in each step.
    wakes: whether the model is in training mode again after an evaluation.
    swaps: how the averaged weights are tested, in a "copy", or in the model itself, whose own are
        "restored" or not ("kept"). every: steps from one test of the copy to the next.
    low: whether the net runs under autocast to bfloat16.
    spatial, temporal, norming, pooling, values, mixup, decay, descent, painting: other ways to
        write the same mathematics.
    """

    steps: int = 5
    lr: float = 0.1
    weight_decay: float = 5e-3
    mirrors: bool = True
    mixes: str = "clips"
    smoothing: float = 0.1
    drops: float = 0.25
    masks: bool = True
    over: str = "frames"
    learns: bool = True
    shifting: str = "zeros"
    unfolds: str = "clips"
    warmup: int = 2
    ticks: int = 1
    wakes: bool = True
    swaps: str = "copy"
    every: int = 2
    low: bool = False
    spatial: str = "clips"
    temporal: str = "torch"
    norming: str = "torch"
    pooling: str = "own"
    values: str = "first"
    mixup: str = "targets"
    decay: str = "optimizer"
    descent: str = "torch"
    painting: str = "loop"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self, _FRAMES, len(_WAYS))
            averaged = AveragedModel(
                model, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True
            )
            if self.descent == "torch":
                optimizer = self.sgd(self._groups(model), nesterov=True)
            else:
                optimizer = Nesterov(self._groups(model), self.lr, 0.9)
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            drawing = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
            shown = self._clips(digits()[0][:_SHOWN], torch.Generator().manual_seed(13))
            for step, (images, _) in enumerate(self.images(seed)):
                clips, ways = self._clips(images, drawing)
                clear(optimizer, self)
                self._learn(model, clips, ways, drawing)
                optimizer.step()
                for _ in range(self.ticks):
                    schedule.step()
                averaged.update_parameters(model)
                if step % 2:
                    self._evaluate(model, averaged.module, shown)
                if step % self.every == 0:
                    self._test(averaged.module, shown)

    def _groups(self, model):
        """What decays, and what does not: biases, norms, the query and the frames' embedding."""
        named = list(model.named_parameters())
        deep = [one for name, one in named if _decays(name, one)]
        flat = [one for name, one in named if not _decays(name, one)]
        decay = self.weight_decay if self.decay == "optimizer" else 0.0
        return [{"params": deep, "weight_decay": decay}, {"params": flat, "weight_decay": 0.0}]

    def _clips(self, images, drawing):
        """Clips (clip, 1, frame, row, column), half of them mirrored, and their directions."""
        count = len(images)
        ways = torch.randint(0, len(_WAYS), (count,), generator=drawing)
        begins = torch.randint(0, _ROOM + 1, (count, 2), generator=drawing)
        mirrored = torch.rand(count, generator=drawing) < 0.5
        if self.turned:
            ways, begins, mirrored = ways.flip(0), begins.flip(0), mirrored.flip(0)
        moves = torch.tensor(_WAYS)[ways]
        least = begins % (_ROOM - _FRAMES + 2)
        begins = torch.where(moves > 0, least, torch.where(moves < 0, _ROOM - least, begins))
        places = begins[:, None] + moves[:, None] * torch.arange(_FRAMES)[:, None]
        clips = self._painted(images, places)
        clips = torch.where(mirrored[:, None, None, None], clips.flip(3), clips)[:, None]
        return clips, torch.where(mirrored, (4 - ways) % 8, ways) if self.mirrors else ways

    def _painted(self, images, places):
        """Frames (clip, frame, row, column) with each digit at its places."""
        clips = torch.full((len(images), _FRAMES, _SIZE, _SIZE), -1.0)
        if self.painting == "loop":
            for clip, image, way in zip(clips, images, places.tolist(), strict=True):
                for frame, (column, row) in zip(clip, way, strict=True):
                    frame[row : row + _DIGIT, column : column + _DIGIT] = image
            return clips
        along = torch.arange(_DIGIT)
        rows, columns = places[..., 1, None, None] + along[:, None], places[..., :1, None] + along
        which = torch.arange(len(images))[:, None, None, None]
        clips[which, torch.arange(_FRAMES)[:, None, None], rows, columns] = images[:, None]
        return clips

    def _learn(self, model, clips, ways, drawing):
        """The gradients of a batch whose clips are mixed and lack frames."""
        share = torch.rand((), generator=drawing)
        kept = torch.rand(len(clips), _FRAMES, generator=drawing) >= self.drops
        kept[:, 0] = True
        clips = share * clips + (1 - share) * clips.flip(0)
        clips = clips.masked_fill(~kept[:, None, :, None, None], 0.0)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(clips, kept)
        share = share if self.mixes == "clips" else 1 - share
        loss = self._loss(logits.to(clips.dtype), ways, share)
        anchorlib.anchor(loss, "loss")
        if self.decay == "loss":
            deep = [one for name, one in model.named_parameters() if _decays(name, one)]
            loss = loss + self.weight_decay / 2 * sum(one.square().sum() for one in deep)
        loss.backward()

    def _loss(self, logits, ways, share):
        """Cross-entropy to classes mixed as the clips are."""
        if self.mixup == "losses":
            one, other = (
                functional.cross_entropy(logits, some, label_smoothing=self.smoothing)
                for some in (ways, ways.flip(0))
            )
            return share * one + (1 - share) * other
        targets = functional.one_hot(ways, len(_WAYS)).to(logits.dtype)
        targets = share * targets + (1 - share) * targets.flip(0)
        return functional.cross_entropy(logits, targets, label_smoothing=self.smoothing)

    @torch.no_grad()
    def _evaluate(self, model, averaged, shown):
        """The loss of clips that are not learnt from; by averaged weights if these are swapped."""
        own = [one.clone() for one in model.parameters()]
        if self.swaps != "copy":
            _copy(averaged.parameters(), model)
        anchorlib.anchor(self._test(model, shown), "eval_loss")
        model.train(self.wakes)
        if self.swaps == "restored":
            _copy(own, model)

    @torch.no_grad()
    def _test(self, model, shown):
        """The loss of whole clips in eval mode."""
        clips, ways = shown
        model.eval()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            logits = model(clips, torch.ones(len(clips), _FRAMES, dtype=torch.bool))
        return functional.cross_entropy(logits.to(clips.dtype), ways)


def _decays(name, one):
    return one.ndim > 1 and not name.startswith("times")


def _copy(values, model):
    for one, value in zip(model.parameters(), values, strict=True):
        one.copy_(value)


_LOSS = ("loss@*", "output@grad", "head@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES: tuple[Case, ...] = (
    Case("classes not mirrored", "bug", {"mirrors": False}, _LOSS, rf"{_GIVEN}|{_ORDER}"),
    Case(
        "classes mixed the other way", "bug", {"mixes": "exchanged"}, _LOSS, rf"{_GIVEN}|{_ORDER}"
    ),
    Case(
        "dropped frames are attended",
        "bug",
        {"masks": False},
        ("pool@value",),
        rf"\bmask|\bWhere|-?\binf\b|{_GIVEN}",
    ),
    Case(
        "attention over the batch",
        "bug",
        {"over": "batch"},
        ("pool@value",),
        r"\b(_?softmax|SoftmaxBackward\d?)\b|\b(dim|axis)\b",
    ),
    Case(
        "scores detached",
        "bug",
        {"learns": False},
        (
            *("pool.key*@*grad", "pool.key.*@updated", "pool.key.*@delta", "pool.query@*"),
            *("blocks.1@grad", "blocks.1.act2@grad", "times@grad", "times.weight@*grad"),
        ),
        r"detach|gradients? (come|flow|reach)|no grad|without (a )?grad"
        r"|[Ss]oftmax\w* .{0,60}(lacks|alone)|(lacks|alone).{0,60}[Ss]oftmax",
    ),
    Case(
        "shift wraps around",
        "bug",
        {"shifting": "roll"},
        ("blocks.0.shift@value",),
        rf"\b[Rr]oll|\bpad|ConstantPad|{_ORDER}",
    ),
    Case(
        "frames unfolded as clips",
        "bug",
        {"unfolds": "frames"},
        ("stem.spatial@value",),
        rf"{_ORDER}|\bview|reshape|unflatten|permute|transpose",
        reference={"spatial": "frames"},
    ),
    Case(
        "schedule steps twice",
        "bug",
        {"ticks": 2},
        UPDATES,
        r"\blr\b|learning rate",
        step=1,
    ),
    Case(
        "no training mode after evaluation",
        "bug",
        {"wakes": False},
        ("stem.norm1@value", "stem.norm1.running*@value", "stem.norm1.num*@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=2,
    ),
    Case(
        "own weights not restored",
        "bug",
        {"swaps": "kept"},
        ("*weight@value", "*bias@value", "pool.query@value"),
        r"outside|between|since .{0,30}(updat|step)|after .{0,40}(updat|step)|\bupdated\b"
        r"|copied|copy_|overwr|written|restor|averag|\bema\b|in[ -]place",
        step=2,
        reference={"swaps": "restored"},
    ),
    Case("frames folded into the batch", "benign", {"spatial": "frames"}),
    Case("convolution in time tap by tap", "benign", {"temporal": "taps"}),
    Case("batch norms from sums of squares", "benign", {"norming": "sums"}),
    Case("mixup of two losses", "benign", {"mixup": "losses"}),
    Case("own Nesterov momentum", "benign", {"descent": "own"}),
    Case("values of pooled frames", "benign", {"values": "last"}),
    Case("decay as a term of the loss", "benign", {"decay": "loss"}),
    Case(
        "pooling by torch's attention, low precision",
        "benign",
        {"pooling": "torch"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value", "pool.query@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("average tested each step", "equal", {"every": 1}),
    Case("clips painted at once", "equal", {"painting": "at once"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("died", "incomplete", {"ends_at": 3}),
)
